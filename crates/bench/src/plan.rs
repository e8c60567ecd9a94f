//! Turns the command line into the plan of a run, and validates it once, before anything is sent. Called by `runner`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use anyhow::{Context as _, bail, ensure};

use crate::args::{BenchArgs, Poll, RequestArgs};
use crate::author::Authors;
use crate::collector::interval_length;
use crate::generator::{NEVER, ReturnedStarts, Shared};
use crate::keys::{KeyNames, Keys, Lines, Order};
use crate::recorder::Operation;
use crate::result::{Load, Stage};
use crate::schedule::{Mode, Phase, Phases, Schedule, Source, nanos, seconds};
use crate::url::Url;
use crate::workload::{BatchRequest, FixedRequest, Mix, Template, Values, Workload};
use klad_base::sync::Mutex;

/// The number of keys if no option gives it, for orders that choose from a limited number of keys.
const KEYS: u64 = 1_000_000;

/// The largest number of connections of a run. Linux has about 28,000 local ports for connections to one server address
/// by default, and 64,000 if all ports are allowed.
const CONNECTIONS_MAX: usize = 64_000;

/// By default, there is one generator thread for this many cores. One thread makes more than 100,000 requests per
/// second, and the server may run on the same cores.
const CORES_PER_THREAD: usize = 4;

/// The plan of a run.
#[derive(Debug)]
pub struct Plan {
    /// The URL of the server.
    pub url: Url,
    /// The state that all threads share.
    pub shared: Arc<Shared>,
    /// The number of keys to PUT before the run, and the workload of these PUTs; `None` without `--fill`.
    pub fill: Option<(u64, Workload)>,
    /// The number of generator threads.
    pub threads: usize,
    /// The number of connections of all threads at the start.
    pub connections: usize,
    /// The description of the load for the result.
    pub load: Load,
    /// The script that writes the requests, and its options; `None` without `--script`.
    pub script: Option<(PathBuf, ScriptOptions)>,
}

/// The part of the command line that a script can see.
#[derive(Clone, Debug)]
pub struct ScriptOptions {
    /// Names and values of `--header`.
    pub headers: Vec<(String, String)>,
    /// The URL, then the arguments after `--`.
    pub arguments: Vec<String>,
}

impl Plan {
    /// Makes the plan of a run on a machine with `cores` cores.
    ///
    /// # Errors
    /// If options contradict each other, or a file cannot be read.
    pub fn new(args: &BenchArgs, cores: usize) -> anyhow::Result<Plan> {
        let url = args.url.as_deref().context("there is no URL")?.parse::<Url>().map_err(anyhow::Error::msg)?;
        let phases = phases(args);
        let requests = &args.requests;
        let threads =
            requests.threads.map_or((cores / CORES_PER_THREAD).max(1), |threads| usize::try_from(threads).unwrap_or(1));
        let (connections, connections_max) = connections(requests)?;
        ensure!(
            requests.threads.is_none() || threads <= connections,
            "--threads {threads} is more than --connections {connections}, but each thread needs at least one connection"
        );
        let threads = threads.min(connections);
        let workload = Arc::new(workload(requests, &url, keys(requests)?)?);
        let fill = match requests.fill {
            Some(count) => Some((count, fill_workload(requests, &url, count)?)),
            None => None,
        };
        let (mode, source) = if args.closed {
            (Mode::Closed, Source::Closed)
        } else {
            (Mode::Open, Source::Open(Mutex::new(Schedule::new(phases.clone(), requests.arrival, requests.seed))))
        };
        let load = load(args, &phases, mode, threads, connections, connections_max.unwrap_or(connections));
        let timeout = nanos(requests.timeout);
        let shared = Shared {
            interval: interval_length(phases.end()),
            phases,
            source,
            workload,
            timeout,
            drain: nanos(requests.drain),
            polls: requests.poll == Poll::On,
            good_within: requests.good_within.map_or(timeout, nanos),
            connections_max,
            connections: AtomicUsize::new(connections),
            authors: Authors::default(),
            failure: Mutex::new(None),
            interrupted: AtomicU64::new(NEVER),
            returned: ReturnedStarts::default(),
            #[cfg(test)]
            planted: None,
        };
        let script = script(args)?;
        Ok(Plan { url, shared: Arc::new(shared), fill, threads, connections, load, script })
    }
}

fn script(args: &BenchArgs) -> anyhow::Result<Option<(PathBuf, ScriptOptions)>> {
    let Some(path) = &args.requests.script else { return Ok(None) };
    ensure!(
        cfg!(feature = "scripts"),
        "this klad was built without Lua, which --script needs (cargo feature `scripts`)"
    );
    let headers = args.requests.headers.iter().filter_map(|header| header.split_once(':'));
    let headers = headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
    let arguments = args.url.iter().chain(&args.requests.script_arguments).cloned().collect();
    Ok(Some((path.clone(), ScriptOptions { headers, arguments })))
}

fn phases(args: &BenchArgs) -> Phases {
    let stages = if let Some(stages) = &args.stages {
        stages.0.clone()
    } else {
        let rate = args.rate.map_or(0.0, |rate| rate.0);
        vec![Phase { from: rate, to: rate, length: nanos(args.duration) }]
    };
    Phases::new(nanos(args.warm_up), &stages)
}

fn connections(args: &RequestArgs) -> anyhow::Result<(usize, Option<usize>)> {
    let connections = usize::try_from(args.connections)?;
    let max = args.connections_max.map(usize::try_from).transpose()?;
    let most = max.unwrap_or(connections);
    ensure!(most >= connections, "--connections-max {most} is less than --connections {connections}");
    ensure!(
        most <= CONNECTIONS_MAX,
        "{most} connections are more than the limit of {CONNECTIONS_MAX}: there are not enough local ports"
    );
    Ok((connections, max))
}

fn order(args: &RequestArgs) -> Order {
    let zipfian = args.workload.as_ref().is_some_and(|mix| mix.zipfian);
    // In sequential order, each request takes the next key. In a mix, GETs would therefore not read the keys that PUTs
    // write.
    let mixed = args.workload.as_ref().is_some_and(|mix| mix.weights.len() > 1);
    args.key_order.unwrap_or(match (zipfian, mixed) {
        (true, _) => Order::Zipfian,
        (false, true) => Order::Uniform,
        (false, false) => Order::Sequential,
    })
}

fn keys(args: &RequestArgs) -> anyhow::Result<Keys> {
    let order = order(args);
    let (names, of_names) = match &args.key_file {
        Some(path) => {
            ensure!(order != Order::Latest, "--key-order latest adds new keys, which --key-file cannot provide");
            let lines = Lines::read(path).with_context(|| format!("cannot read keys from {}", path.display()))?;
            let count = lines.count();
            (KeyNames::Lines(lines), Some(count))
        }
        None => (KeyNames::Format(args.key_format.clone()), args.fill),
    };
    let count = match args.keys.or(of_names) {
        None if order != Order::Sequential => Some(KEYS),
        count => count,
    };
    if let (Some(lines), Some(count)) = (of_names.filter(|_| args.key_file.is_some()), count) {
        ensure!(count <= lines, "--keys {count} is more than the {lines} keys in the file");
    }
    Ok(Keys::new(names, order, args.key_start, count))
}

fn workload(args: &RequestArgs, url: &Url, keys: Keys) -> anyhow::Result<Workload> {
    let fixed = match &args.workload {
        Some(_) => None,
        None => Some(FixedRequest { method: method(&args.method)?, body: body(args)? }),
    };
    let weights = match &args.workload {
        Some(Mix { weights, .. }) => weights.clone(),
        None => vec![(Operation::Request, 1.0)],
    };
    let (target, batch) = match args.batch {
        None => (url.target(args.workload.is_some())?, None),
        Some(items) => {
            ensure!(keys.order() != Order::Latest, "--batch does not work with --key-order latest");
            (vec![url.batch_target()], Some(BatchRequest { items }))
        }
    };
    ensure!(args.pipeline == 1 || keys.order() != Order::Latest, "--pipeline does not work with --key-order latest");
    Ok(Workload {
        weights,
        template: Template { target, headers: headers(args, url)? },
        fixed,
        batch,
        pipeline: args.pipeline,
        keys,
        zipf_exponent: args.zipf_exponent,
        values: values(args),
        seed: args.seed,
    })
}

/// Returns the workload of `--fill`: PUTs of the first `count` keys in sequence.
fn fill_workload(args: &RequestArgs, url: &Url, count: u64) -> anyhow::Result<Workload> {
    let names = match &args.key_file {
        Some(path) => {
            let lines = Lines::read(path).with_context(|| format!("cannot read keys from {}", path.display()))?;
            ensure!(count <= lines.count(), "--fill {count} is more than the {} keys in the file", lines.count());
            KeyNames::Lines(lines)
        }
        None => KeyNames::Format(args.key_format.clone()),
    };
    Ok(Workload {
        weights: vec![(Operation::Put, 1.0)],
        template: Template { target: url.target(true)?, headers: headers(args, url)? },
        fixed: None,
        batch: None,
        pipeline: 1,
        keys: Keys::new(names, Order::Sequential, args.key_start, Some(count)),
        zipf_exponent: args.zipf_exponent,
        values: values(args),
        seed: args.seed,
    })
}

fn values(args: &RequestArgs) -> Values {
    match &args.value_format {
        Some(format) => Values::Format(format.clone()),
        None => Values::random(args.value_size, args.seed),
    }
}

fn method(method: &str) -> anyhow::Result<String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    ensure!(!method.is_empty() && method.bytes().all(token), "{method:?} is not an HTTP method");
    ensure!(method != "CONNECT", "CONNECT opens a tunnel, which klad bench does not support");
    Ok(method.to_owned())
}

fn body(args: &RequestArgs) -> anyhow::Result<Option<Vec<u8>>> {
    Ok(match args.body.as_deref() {
        None => None,
        Some(body) => Some(match body.strip_prefix('@') {
            Some(path) => std::fs::read(path).with_context(|| format!("cannot read the body from {path}"))?,
            None => body.as_bytes().to_vec(),
        }),
    })
}

/// Returns the header lines, including `Host`. Rejects headers that say where a request ends, because the generator
/// itself sets them.
fn headers(args: &RequestArgs, url: &Url) -> anyhow::Result<Vec<u8>> {
    let mut lines = String::new();
    let mut host = false;
    for header in &args.headers {
        let Some((name, value)) = header.split_once(':') else { bail!("header {header:?} is not NAME: VALUE") };
        let name = name.trim();
        method(name).map_err(|_| anyhow::anyhow!("header {header:?} has a name that HTTP does not allow"))?;
        ensure!(!value.contains(['\r', '\n', '\0']), "header {header:?} has a line break or NUL in its value");
        for own in ["Content-Length", "Transfer-Encoding"] {
            ensure!(!name.eq_ignore_ascii_case(own), "{own} is set by klad bench itself");
        }
        host |= name.eq_ignore_ascii_case("Host");
        lines.extend([name, ": ", value.trim(), "\r\n"]);
    }
    if !host {
        lines.insert_str(0, &format!("Host: {}\r\n", url.authority));
    }
    Ok(lines.into_bytes())
}

fn load(args: &BenchArgs, phases: &Phases, mode: Mode, threads: usize, connections: usize, most: usize) -> Load {
    let open = mode == Mode::Open;
    let stage = |phase: &Phase| Stage {
        from_per_s: open.then_some(phase.from),
        to_per_s: open.then_some(phase.to),
        duration_s: seconds(phase.length),
    };
    Load {
        mode,
        arrival: open.then(|| format!("{:?}", args.requests.arrival).to_lowercase()),
        seed: args.requests.seed,
        stages: phases.all()[1..].iter().map(stage).collect(),
        warm_up_s: seconds(phases.warm_up()),
        duration_s: seconds(phases.end() - phases.warm_up()),
        drain_s: args.requests.drain.as_secs_f64(),
        timeout_s: args.requests.timeout.as_secs_f64(),
        connections,
        connections_max: most,
        threads,
        polls: args.requests.poll == Poll::On,
        script: args.requests.script.as_ref().map(|script| script.display().to_string()),
        requests_per_start: args.requests.pipeline,
        workload: describe(args),
    }
}

fn describe(args: &BenchArgs) -> String {
    let requests = &args.requests;
    if let Some(script) = &requests.script {
        let each = "run separately by each thread, so its counters repeat in each thread";
        return format!("script {}, {each}", script.display());
    }
    let Some(mix) = &requests.workload else {
        return format!("{} {}", requests.method, args.url.as_deref().unwrap_or_default());
    };
    let count = requests.keys.or(requests.fill).map_or_else(String::new, |keys| format!(" of {keys}"));
    let puts = mix.weights.iter().any(|(operation, _)| *operation == Operation::Put);
    let values = match (&requests.value_format, requests.value_size) {
        _ if !puts => String::new(),
        (Some(_), _) => ", values by format".to_owned(),
        (None, sizes) if sizes.min == sizes.max => format!(", values of {} bytes", sizes.max),
        (None, sizes) => format!(", values of {} to {} bytes", sizes.min, sizes.max),
    };
    let order = format!("{:?}", order(requests)).to_lowercase();
    let together = match (requests.batch, requests.pipeline) {
        (Some(items), _) => format!(" in batches of {items}"),
        (None, 1) => String::new(),
        (None, each) => format!(" in pipelines of {each}"),
    };
    format!("{}{together}, keys {order}{count}{values}", mix.name)
}
