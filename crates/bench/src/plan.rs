//! From what was typed to what is done: validated once, before anything is sent. Called by `runner`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use anyhow::{Context as _, bail, ensure};

use crate::args::{BenchArgs, Poll, RequestArgs};
use crate::author::Authors;
use crate::collector::interval_of;
use crate::generator::{NEVER, Returned, Shared};
use crate::keys::{Keys, Lines, Names, Order};
use crate::recorder::Operation;
use crate::result::{Load, Stage};
use crate::schedule::{Mode, Phase, Phases, Schedule, Source, nanos, seconds};
use crate::url::Url;
use crate::workload::{Fixed, Mix, Template, Values, Workload};
use klad_base::sync::Mutex;

/// Keys of an order that chooses among them, when nothing says how many there are.
const KEYS: u64 = 1_000_000;

/// Connections of one run at the most: Linux has some 28,000 local ports for one server's address by default, and 64,000 if
/// all are allowed.
const CONNECTIONS_MAX: usize = 64_000;

/// Cores for which the generator takes one thread: one thread makes 100,000 requests a second and more, and the cores may
/// have to do for the server too.
const CORES_PER_THREAD: usize = 4;

/// All that the run needs to know.
#[derive(Debug)]
pub struct Plan {
    /// Where requests go.
    pub url: Url,
    /// What the threads share.
    pub shared: Arc<Shared>,
    /// Keys to PUT before the run, and the workload for it.
    pub fill: Option<(u64, Arc<Workload>)>,
    /// Threads.
    pub threads: usize,
    /// Connections at the start, of all threads.
    pub connections: usize,
    /// For the result.
    pub load: Load,
    /// The script that writes the requests, and what it is told.
    pub script: Option<(PathBuf, ScriptOptions)>,
}

/// What a script is told of the command line.
#[derive(Clone, Debug)]
pub struct ScriptOptions {
    /// Names and values of `--header`.
    pub headers: Vec<(String, String)>,
    /// The URL, then what was given after `--`.
    pub arguments: Vec<String>,
}

impl Plan {
    /// # Errors
    /// When options contradict each other, or a file cannot be read.
    pub fn new(args: &BenchArgs, cores: usize) -> anyhow::Result<Plan> {
        let url = args.url.as_deref().context("there is no URL")?.parse::<Url>().map_err(anyhow::Error::msg)?;
        let phases = phases(args);
        let requests = &args.requests;
        let threads =
            requests.threads.map_or((cores / CORES_PER_THREAD).max(1), |threads| usize::try_from(threads).unwrap_or(1));
        let (connections, connections_max) = connections(requests)?;
        ensure!(
            requests.threads.is_none() || threads <= connections,
            "--threads {threads} is more than --connections {connections}, of which each thread needs one"
        );
        let threads = threads.min(connections);
        let workload = Arc::new(workload(requests, &url, keys(requests)?)?);
        let fill = match requests.fill {
            Some(count) => Some((count, Arc::new(fill_workload(requests, &url, count)?))),
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
            interval: interval_of(phases.end()),
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
            returned: Returned::default(),
            #[cfg(test)]
            planted: None,
        };
        let script = script(args)?;
        Ok(Plan { url, shared: Arc::new(shared), fill, threads, connections, load, script })
    }
}

fn script(args: &BenchArgs) -> anyhow::Result<Option<(PathBuf, ScriptOptions)>> {
    let Some(path) = &args.requests.script else { return Ok(None) };
    ensure!(cfg!(feature = "scripts"), "this klad was built without Lua, which scripts need (the feature `scripts`)");
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
        "{most} connections are more than {CONNECTIONS_MAX}, for which there are local ports"
    );
    Ok((connections, max))
}

fn order(args: &RequestArgs) -> Order {
    let zipfian = args.workload.as_ref().is_some_and(|mix| mix.zipfian);
    // In sequence, what one kind of request writes another would never read.
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
            ensure!(order != Order::Latest, "latest adds new keys, and a file has none");
            let lines = Lines::read(path).with_context(|| format!("cannot take keys from {}", path.display()))?;
            let count = lines.count();
            (Names::Lines(lines), Some(count))
        }
        None => (Names::Format(args.key_format.clone()), args.fill),
    };
    let count = match args.keys.or(of_names) {
        None if order != Order::Sequential => Some(KEYS),
        count => count,
    };
    if let (Some(lines), Some(count)) = (of_names.filter(|_| args.key_file.is_some()), count) {
        ensure!(count <= lines, "--keys {count} is more than the {lines} keys of the file");
    }
    Ok(Keys::new(names, order, args.key_start, count))
}

fn workload(args: &RequestArgs, url: &Url, keys: Keys) -> anyhow::Result<Workload> {
    let fixed = match &args.workload {
        Some(_) => None,
        None => Some(Fixed { method: method(&args.method)?, body: body(args)? }),
    };
    let weights = match &args.workload {
        Some(Mix { weights, .. }) => weights.clone(),
        None => vec![(Operation::Request, 1.0)],
    };
    Ok(Workload {
        weights,
        template: Template { target: url.target(args.workload.is_some())?, headers: headers(args, url)? },
        fixed,
        keys,
        zipf_exponent: args.zipf_exponent,
        values: values(args),
        seed: args.seed,
    })
}

/// PUTs of the first `count` keys, in sequence.
fn fill_workload(args: &RequestArgs, url: &Url, count: u64) -> anyhow::Result<Workload> {
    let names = match &args.key_file {
        Some(path) => {
            let lines = Lines::read(path).with_context(|| format!("cannot take keys from {}", path.display()))?;
            ensure!(count <= lines.count(), "--fill {count} is more than the {} keys of the file", lines.count());
            Names::Lines(lines)
        }
        None => Names::Format(args.key_format.clone()),
    };
    Ok(Workload {
        weights: vec![(Operation::Put, 1.0)],
        template: Template { target: url.target(true)?, headers: headers(args, url)? },
        fixed: None,
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
    ensure!(!method.is_empty() && method.bytes().all(token), "{method:?} is no HTTP method");
    ensure!(method != "CONNECT", "CONNECT asks for a tunnel, and klad bench does not make one");
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

/// Header lines, `Host` among them. What frames a request is the generator's own business.
fn headers(args: &RequestArgs, url: &Url) -> anyhow::Result<Vec<u8>> {
    let mut lines = String::new();
    let mut host = false;
    for header in &args.headers {
        let Some((name, value)) = header.split_once(':') else { bail!("header {header:?} is not NAME: VALUE") };
        let name = name.trim();
        method(name).map_err(|_| anyhow::anyhow!("header {header:?} has no name that HTTP allows"))?;
        ensure!(!value.contains(['\r', '\n', '\0']), "header {header:?} has a line break in its value");
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
        requests_per_start: 1,
        workload: describe(args),
    }
}

fn describe(args: &BenchArgs) -> String {
    let requests = &args.requests;
    if let Some(script) = &requests.script {
        let each = "run by each thread for itself, so that what it counts repeats for each";
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
    format!("{}, keys {order}{count}{values}", mix.name)
}
