//! Facts about the machine that makes the load. Called by `runner` and `klad_lab`.

use std::fs::read_to_string;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::result::Machine;

/// The CPU times of all cores together, from `/proc/stat`, in kernel ticks: time that the hypervisor gave to others,
/// and all time.
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    steal: u64,
    all: u64,
}

impl CpuTimes {
    /// Reads the present values. Returns `None` if `/proc/stat` cannot be read.
    #[must_use]
    pub fn read() -> Option<CpuTimes> {
        let stat = read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
        // The fields are: user nice system idle iowait irq softirq steal. The guest times that follow are part of user
        // time.
        Some(CpuTimes { steal: *ticks.get(7)?, all: ticks.iter().take(8).sum() })
    }

    /// Returns the percentage of all time since `before` that the hypervisor gave to others.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ticks of a run")]
    pub fn steal_percent_since(self, before: CpuTimes) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(self.steal.saturating_sub(before.steal) as f64 / all as f64 * 100.0)
    }
}

/// Describes this machine.
#[must_use]
pub fn describe(cores: usize, steal_percent: Option<f64>) -> Machine {
    let uname = rustix::system::uname();
    let cpu = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = memory.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    Machine {
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
        cpu: model.map_or_else(|| uname.machine().to_string_lossy().into_owned(), |(_, name)| name.trim().to_owned()),
        cores,
        memory_bytes: kibibytes.unwrap_or(0) * 1024,
        steal_percent,
    }
}

/// Returns `true` if `address` belongs to this machine. The test: a packet to an own address has the same address as
/// its source.
#[must_use]
pub fn is_own(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let leaves_from = UdpSocket::bind((any, 0)).and_then(|socket| {
        // No packet is sent: the kernel only chooses a route.
        socket.connect(address)?;
        socket.local_addr()
    });
    address.ip().is_loopback() || leaves_from.is_ok_and(|from| from.ip() == address.ip())
}
