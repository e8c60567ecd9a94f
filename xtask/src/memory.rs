//! `cargo xtask memory` checks that klad's resident memory stays within 1.1 times its budget plus 64 MiB while various
//! loads fill memory.
//!
//! ```text
//!   fill ─▶ point reads ─▶ idle connections ─▶ a range over everything, with point reads beside it
//!   └──────────── the kernel's own peak of the resident set (VmHWM) ────────────┘
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::Verdict;
use crate::setup::{ProgramArgs, Setup, grouped, mebibytes};

/// klad's memory budget.
const MEMORY: u64 = 256 << 20;

/// What klad may need in addition to 1.1 times its budget, bytes. It is for the program, its stacks and the
/// allocator's own data.
const FREE_BYTES: u64 = 64 << 20;

/// The sizes of a key and of a value, bytes.
const KEY_BYTES: u64 = 10;
const VALUE_BYTES: u64 = 100;

/// The longest time of a fill or of point reads. [`Setup::bench`] kills them two minutes later.
const PATIENCE: Duration = Duration::from_mins(10);

/// Options of `memory`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    program: ProgramArgs,
    /// Keys to write.
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    keys: u64,
    /// Connections that stay open after one read each.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    idle: u64,
}

/// Runs the measurement.
pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let setup = Setup::new(&args.program)?;
    let memory = MEMORY.to_string();
    // Idle connections must hold their memory until the end of the measurement.
    let server = setup.serve("memory", &["--memory", &memory, "--durability", "async", "--idle-timeout", "1h"])?;
    let peak = || server.memory_max().context("the kernel does not tell the process's memory");
    let keys = format!("--key-format key{{:07}} --keys {} --key-order uniform --workload get --closed", args.keys);
    let mut peaks = vec![("start", peak()?)];
    let fill = format!("{keys} --value-size {VALUE_BYTES}B --fill {} --warm-up 0s --duration 100ms", args.keys);
    setup.bench("fill", &server.url(), &fill, PATIENCE)?;
    peaks.push(("fill", peak()?));
    let reads = format!("{keys} --warm-up 0s --duration 10s");
    setup.bench("reads", &server.url(), &reads, PATIENCE)?;
    peaks.push(("point reads", peak()?));
    let idle: Vec<TcpStream> = (0..args.idle).map(|_| idle_connection(server.address)).collect::<Result<_>>()?;
    peaks.push(("idle connections", peak()?));
    let range_bytes = thread::scope(|scope| {
        let beside = scope.spawn(|| setup.bench("beside", &server.url(), &reads, PATIENCE));
        let read = read_range(server.address);
        beside.join().ok().context("the thread of the point reads has panicked")??;
        read
    })?;
    peaks.push(("range", peak()?));
    let expected = args.keys * (KEY_BYTES + 1 + VALUE_BYTES);
    ensure!(range_bytes == expected, "the range has {range_bytes} bytes instead of {expected}");
    drop(idle);
    server.stop()?;
    println!("{} keys with values of {VALUE_BYTES} bytes, {} idle connections", grouped(args.keys), grouped(args.idle));
    for (phase, bytes) in &peaks {
        println!("{phase:<18}{:>14}", mebibytes(*bytes));
    }
    let (verdict, most) = (judge(peaks[peaks.len() - 1].1), mebibytes(bound()));
    println!("{}: the peak is at most 1.1 × {} + 64 MiB = {most}", verdict.word(), mebibytes(MEMORY));
    Ok(verdict)
}

/// Returns the largest allowed resident memory of klad, bytes.
fn bound() -> u64 {
    MEMORY + MEMORY / 10 + FREE_BYTES
}

fn judge(peak_bytes: u64) -> Verdict {
    Verdict::of(peak_bytes <= bound())
}

/// Opens a connection, and sends one read and receives its answer on it.
fn idle_connection(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address).context("cannot connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET /v0/entity?id=key0000000 HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = [0; 1024];
    let count = stream.read(&mut answer).context("no answer")?;
    ensure!(answer[..count].starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer[..count]));
    Ok(stream)
}

/// Reads everything in one range. Returns the number of bytes.
fn read_range(address: SocketAddr) -> Result<u64> {
    let answer = ureq::get(format!("http://{address}/v0/entities?start=%00")).call().context("the range failed")?;
    io::copy(&mut answer.into_body().into_reader(), &mut io::sink()).context("the range breaks off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_itself_is_within_and_a_byte_more_is_not() {
        assert_eq!([judge(bound()), judge(bound() + 1)], [Verdict::Within, Verdict::Exceeded]);
    }
}
