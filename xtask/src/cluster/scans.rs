//! Measures scans as streams of lines: a scan of one directory, which is in one bucket, and a scan of all entries,
//! which are in all buckets.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use klad_lab::server::RunningServer;
use rustix::process::Pid;

use super::figures::print_table;
use super::nodes::Nodes;
use super::store::store;
use super::{Args, fill, go_on};
use crate::setup::{Setup, grouped, mebibytes};

const KEYSPACE: &str = "scans";

/// The size of the values, bytes.
const VALUE_BYTES: usize = 20;

/// The interval at which klad's memory is read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the measurement, and prints its table.
pub(super) fn run(args: &Args, setup: &Setup, nodes: &Nodes) -> Result<()> {
    nodes.init(KEYSPACE)?;
    let in_directory = args.entries / 10;
    let writer = nodes.klad(KEYSPACE, "scan-fill", &[])?;
    for (prefix, count) in [("dir/", in_directory), ("entry", args.entries)] {
        fill(setup, &writer.url(), &format!("{prefix}{{:08}}"), 1, VALUE_BYTES)?;
        eprintln!("storing {} entries", grouped(count));
        let key = |number: u64| format!("{prefix}{number:08}");
        store(&nodes.addresses(), KEYSPACE, &key(0), (1..count).map(key), VALUE_BYTES)?;
    }
    drop(writer);
    let mut rows = Vec::new();
    for (name, query, expected) in
        [("dir/", "?prefix=dir/", in_directory), ("everything", "", in_directory + args.entries)]
    {
        nodes.rest()?;
        eprintln!("scanning {} entries", grouped(expected));
        // A new klad, so that its memory shows only the scan.
        let klad = nodes.klad(KEYSPACE, "scan", &["--scan-time-max", "1h"])?;
        let scan = measure(&klad, query)?;
        drop(klad);
        ensure!(scan.entries == expected, "WRONG: the scan has {} entries instead of {expected}", scan.entries);
        let count = grouped(scan.entries);
        let [before, peak] = [scan.memory_before, scan.memory_peak].map(mebibytes);
        #[expect(clippy::cast_precision_loss, reason = "entries are far below 2^52")]
        let rate = scan.entries as f64 / scan.time.as_secs_f64();
        rows.push(vec![
            name.to_owned(),
            count,
            format!("{:.1}", scan.time.as_secs_f64()),
            format!("{rate:.0}"),
            before,
            peak,
        ]);
    }
    let columns = ["scan of", "entries", "s", "entries per second", "klad's memory before", "its peak during the scan"];
    print_table(&format!("Scans as NDJSON, values of {VALUE_BYTES} bytes"), &columns, &rows);
    println!("* every key came once, in ascending order; memory is the resident set of a klad that did nothing else");
    Ok(())
}

/// The figures of one scan. Memory is in bytes.
struct Scan {
    entries: u64,
    time: Duration,
    memory_before: u64,
    memory_peak: u64,
}

fn measure(klad: &RunningServer, query: &str) -> Result<Scan> {
    let [memory_before, peak_before] = memory(klad.pid())?;
    let begin = Instant::now();
    let stop = AtomicBool::new(false);
    let (read, sampled) = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                most = memory(klad.pid()).map_or(most, |[now, _]| most.max(now));
                thread::sleep(SAMPLE_INTERVAL);
            }
            most
        });
        let read = ureq::get(format!("http://{}/v1/kv{query}", klad.address))
            .header("Accept", "application/x-ndjson")
            .call()
            .context("the scan failed")
            .and_then(|answer| read_scan(answer.into_body().into_reader()));
        let time = begin.elapsed();
        stop.store(true, Ordering::Relaxed);
        (read.map(|entries| (entries, time)), sampler.join())
    });
    let (entries, time) = read?;
    let sampled = sampled.ok().context("the thread that reads the memory has panicked")?;
    let [_, peak] = memory(klad.pid())?;
    // The kernel's own peak is exact, but it only shows this scan if the scan has raised it.
    let memory_peak = if peak > peak_before { peak } else { sampled };
    Ok(Scan { entries, time, memory_before, memory_peak })
}

/// Reads a stream to its end, and checks that keys ascend. Returns the number of entries.
fn read_scan(body: impl Read) -> Result<u64> {
    let mut body = BufReader::with_capacity(256 << 10, body);
    let (mut line, mut before, mut entries) = (Vec::new(), Vec::new(), 0);
    loop {
        line.clear();
        body.read_until(b'\n', &mut line).context("the scan breaks off")?;
        let Some(key) = key_of(&line) else {
            let last = String::from_utf8_lossy(&line);
            ensure!(line.starts_with(br#"{"next":null,"complete":true"#), "WRONG: the scan ends with {last:?}");
            return Ok(entries);
        };
        if entries > 0 && *key <= before[..] {
            let [before, key] = [&before[..], key].map(String::from_utf8_lossy);
            bail!("WRONG: {key} comes after {before}");
        }
        before.clear();
        before.extend_from_slice(key);
        entries += 1;
        if entries % 1_000 == 0 {
            go_on()?;
        }
    }
}

/// Returns the key of a line with an entry; `None` for other lines. The keys of this measurement need no JSON escapes.
fn key_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(br#"{"key":""#)?;
    rest.split(|byte| *byte == b'"').next()
}

/// Returns the resident set of a process, and the peak of the resident set so far, bytes.
fn memory(pid: Pid) -> Result<[u64; 2]> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kibibytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let find = |name| kibibytes(name).with_context(|| format!("{path} has no {name}"));
    Ok([find("VmRSS:")? * 1024, find("VmHWM:")? * 1024])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(keys: &[&str], end: &str) -> Result<u64> {
        let lines: Vec<String> = keys.iter().map(|key| format!("{{\"key\":\"{key}\",\"value\":\"x\"}}\n")).collect();
        read_scan(format!("{}{end}\n", lines.concat()).as_bytes())
    }

    #[test]
    fn a_whole_scan_in_order_is_counted() {
        assert_eq!(scan(&["a", "a/1", "b"], r#"{"next":null,"complete":true}"#).expect("complete"), 3);
    }

    #[test]
    fn twin_a_key_out_of_order_or_a_scan_without_end_is_noticed() {
        let end = r#"{"next":null,"complete":true}"#;
        for (keys, end) in [(["a", "a"], end), (["b", "a"], end), (["a", "b"], r#"{"next":"x","complete":false}"#)] {
            assert!(scan(&keys, end).is_err(), "{keys:?}, {end}");
        }
        assert!(scan(&["a", "b"], "").is_err(), "a scan that was cut off");
    }
}
