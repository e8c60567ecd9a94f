//! Free space: below the reserve writes are 507, and they recover by themselves.

use std::fs::File;

use super::support::{ServerBuilder, wait_until};

/// Enough that what else happens on the machine's disk does not matter.
const MARGIN_BYTES: u64 = 3 << 30;

#[test]
fn writes_are_507_below_the_reserve_and_recover() {
    let data = tempfile::tempdir().unwrap();
    let space = rustix::fs::statvfs(data.path()).unwrap();
    let free = space.f_bavail * space.f_frsize;
    assert!(free > 4 * MARGIN_BYTES, "this test needs {} bytes of free space", 4 * MARGIN_BYTES);
    let reserve = (free - MARGIN_BYTES).to_string();
    let server = ServerBuilder::new("rocksdb").data(&data.path().join("data")).arg("--disk-reserve", &reserve).start();
    let mut client = server.client();
    assert_eq!(client.put("/v0/entity?id=k", b"v").status, 201);
    // Takes twice the margin without writing it.
    let path = data.path().join("filler");
    rustix::fs::fallocate(File::create(&path).unwrap(), rustix::fs::FallocateFlags::empty(), 0, 2 * MARGIN_BYTES)
        .unwrap();
    wait_until("writes are refused", || client.put("/v0/entity?id=k", b"w").status == 507);
    assert_eq!(client.get("/v0/entity?id=k").status, 200, "reads go on");
    assert_eq!(client.delete("/v0/entity?id=other").status, 202, "removing is how space is won back");
    let ready = server.admin("/readyz");
    assert!(ready.status == 507 && ready.text().contains("no-space"), "{} {}", ready.status, ready.text());
    std::fs::remove_file(path).unwrap();
    wait_until("writes are taken again", || client.put("/v0/entity?id=k", b"x").status == 201);
    assert_eq!(server.admin("/readyz").status, 200);
}
