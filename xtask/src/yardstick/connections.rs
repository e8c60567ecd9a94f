//! What connections cost, compared with a bare echo: the memory of a connection, and the CPU time of a GET with few
//! connections and with many.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use klad_lab::scenario::Peer;
use klad_lab::server::{RunningServer, ServerKind};
use rustix::process::Pid;

use super::{Bound, Comparison, PATIENCE, Yardstick, served};
use crate::profile_cost::cpu_of;

/// The numbers of connections that send requests at the same time. The CPU time includes the opening of the
/// connections.
const ACTIVE: [(&str, u32); 3] =
    [("GET, 64 connections", 64), ("GET, 1,000 connections", 1_000), ("GET, 10,000 connections", 10_000)];

/// The number of connections whose memory is measured.
const IDLE: usize = 5_000;

/// The number of keys. It is small, because the measurement is about connections and not about the cache.
const KEYS: u32 = 100_000;

/// A pause in which a server accepts all connections, and frees the memory that it keeps for a while after a request.
const REST: Duration = Duration::from_secs(1);

impl<'a> Yardstick<'a> {
    /// Starts a bare HTTP echo server, whose directory is `name`.
    pub(super) fn echo(self, name: &str) -> Result<RunningServer> {
        let words = ["{klad}", "lab", "echo", "--listen", "{address}"].map(str::to_owned);
        let peer =
            Peer { command: words.to_vec(), ready: "/".to_owned(), files: BTreeMap::new(), path: None, fill: false };
        self.setup.serve_kind(ServerKind::Peer { peer: &peer, klad: self.setup.program() }, name)
    }

    /// Prints the memory of a connection to klad and to an echo, and compares their GETs.
    pub(super) fn connections(self) -> Result<Vec<Comparison<'a>>> {
        let klad =
            self.setup.serve("connections", &["--memory", "1GiB", "--threads", "1", "--connections-max", "10000"])?;
        let servers = Rc::new([klad, self.echo("echo")?]);
        self.load(&servers[0], &format!("--workload put --fill {KEYS} --keys {KEYS}"))?;
        let load = format!("--workload get --keys {KEYS} --key-order uniform --closed");
        println!("memory of a connection without a request, and of one that has had its answer:");
        for (name, server) in ["klad", "echo"].iter().zip(&*servers) {
            self.bench(&server.url(), &load)?;
            let [idle, answered] = memory_of_connections(server.address, server.pid())?;
            println!("  {name}: {idle:.1} KiB, {answered:.1} KiB");
        }
        let comparison = move |(name, connections): (&'static str, u32)| {
            let (servers, load) = (servers.clone(), format!("{load} --connections {connections}"));
            Comparison::new(name, "us of CPU time", Bound::AtMost(1.25), move |side| {
                let server = &servers[side as usize];
                let before = cpu_of(server.pid())?;
                let result = self.bench(&server.url(), &load)?;
                Ok(cpu_of(server.pid())?.saturating_sub(before).as_secs_f64() * 1e6 / served(&result))
            })
        };
        Ok(ACTIVE.into_iter().map(comparison).collect())
    }
}

/// Returns the resident memory of a server for each of [`IDLE`] open connections, KiB: before a request on the
/// connection, and after one.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn memory_of_connections(address: SocketAddr, server: Pid) -> Result<[f64; 2]> {
    std::thread::sleep(REST);
    let before = resident_pages(server)?;
    let each = || -> Result<f64> {
        std::thread::sleep(REST);
        let kibibytes = rustix::param::page_size() as f64 / 1024.0;
        Ok((resident_pages(server)? - before) * kibibytes / IDLE as f64)
    };
    let mut connections = (0..IDLE).map(|_| TcpStream::connect(address)).collect::<std::io::Result<Vec<_>>>()?;
    let idle = each()?;
    for connection in &mut connections {
        connection.write_all(b"GET /v0/entity?id=key1 HTTP/1.1\r\nHost: klad\r\n\r\n")?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let mut answer = [0; 4096];
        let length = connection.read(&mut answer)?;
        ensure!(answer[..length].starts_with(b"HTTP/1.1 200"), "a connection has no answer with 200");
    }
    Ok([idle, each()?])
}

fn resident_pages(process: Pid) -> Result<f64> {
    let path = format!("/proc/{}/statm", process.as_raw_nonzero());
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.with_context(|| format!("{path}: no resident pages"))
}
