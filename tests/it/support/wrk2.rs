//! Reads wrk2's output as a script would that plots its latencies. It is strict about what wrk2's source always
//! prints, and ignores the lines that `klad bench` adds between wrk2's parts.

/// The figures that such a script reads from the text.
#[derive(Debug)]
pub(crate) struct Wrk2 {
    /// The eight percentiles and their values.
    pub(crate) latencies: Vec<(f64, Time)>,
    pub(crate) spectrum: Vec<Point>,
    pub(crate) max_ms: f64,
    pub(crate) total_count: u64,
    pub(crate) requests: u64,
    pub(crate) socket_errors: Option<SocketErrors>,
    pub(crate) others_than_2xx_and_3xx: Option<u64>,
    pub(crate) requests_per_s: f64,
}

/// A time, and the resolution with which the text shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) micros: f64,
    pub(crate) resolution_micros: f64,
}

/// A line of the spectrum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) value_ms: f64,
    pub(crate) quantile: f64,
    pub(crate) count: u64,
    /// 1 / (1 - quantile), or infinity.
    pub(crate) inverse: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketErrors {
    pub(crate) connect: u64,
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) timeout: u64,
}

const PERCENTILES: [&str; 8] =
    [" 50.000%", " 75.000%", " 90.000%", " 99.000%", " 99.900%", " 99.990%", " 99.999%", "100.000%"];

type Lines<'a> = std::str::Lines<'a>;

/// Reads a whole text.
///
/// # Errors
/// The first deviation from wrk2's format.
pub(crate) fn read(text: &str) -> Result<Wrk2, String> {
    let mut lines = text.lines();
    let title = "  Latency Distribution (HdrHistogram - Recorded Latency)";
    lines.by_ref().find(|line| *line == title).ok_or("there is no latency distribution")?;
    let latencies = PERCENTILES.iter().map(|name| latency(&mut lines, name)).collect::<Result<_, _>>()?;
    expect(&mut lines, "")?;
    expect(&mut lines, "  Detailed Percentile spectrum:")?;
    expect(&mut lines, "       Value   Percentile   TotalCount 1/(1-Percentile)")?;
    expect(&mut lines, "")?;
    let mut spectrum = Vec::new();
    let mean = loop {
        let line = lines.next().ok_or("the spectrum does not end")?;
        if line.starts_with('#') {
            break line;
        }
        spectrum.push(point(line)?);
    };
    pair(mean, "Mean", "StdDeviation")?;
    let (max_ms, total_count) = pair(next(&mut lines)?, "Max", "Total count")?;
    pair(next(&mut lines)?, "Buckets", "SubBuckets")?;
    expect(&mut lines, "----------------------------------------------------------")?;
    let rest: Vec<_> = lines.collect();
    let after = |prefix: &str| rest.iter().find_map(|line| line.strip_prefix(prefix)).map(str::trim);
    let others = after("  Non-2xx or 3xx responses: ").map(|count| number(count, "the other answers")).transpose()?;
    after("Transfer/sec: ").and_then(|transfer| transfer.strip_suffix('B')).ok_or("there is no transfer")?;
    Ok(Wrk2 {
        latencies,
        spectrum,
        max_ms,
        total_count: number(&total_count.to_string(), "the total count")?,
        requests: requests(&rest)?,
        socket_errors: after("  Socket errors: ").map(socket_errors).transpose()?,
        others_than_2xx_and_3xx: others,
        requests_per_s: number(after("Requests/sec: ").ok_or("there is no rate")?, "the rate")?,
    })
}

fn next<'a>(lines: &mut Lines<'a>) -> Result<&'a str, String> {
    lines.next().ok_or_else(|| "the text ends early".to_owned())
}

fn expect(lines: &mut Lines, expected: &str) -> Result<(), String> {
    let line = next(lines)?;
    if line == expected { Ok(()) } else { Err(format!("{line:?} stands where {expected:?} should")) }
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{what} is {text:?}"))
}

/// ` 50.000%    1.05ms`.
fn latency(lines: &mut Lines, name: &str) -> Result<(f64, Time), String> {
    let line = next(lines)?;
    let value = line.strip_prefix(name).ok_or_else(|| format!("{line:?} is not that of {name}"))?;
    Ok((number(name.trim_end_matches('%'), "a percentile")?, time(value)?))
}

fn time(text: &str) -> Result<Time, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit_micros = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return Err(format!("{text:?} has no unit of wrk2's")),
    };
    Ok(Time { micros: number::<f64>(digits, "a time")? * unit_micros, resolution_micros: unit_micros / 100.0 })
}

fn point(line: &str) -> Result<Point, String> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [value, quantile, count, inverse] = words[..] else { return Err(format!("{line:?} has not four columns")) };
    Ok(Point {
        value_ms: number(value, "a value")?,
        quantile: number(quantile, "a percentile")?,
        count: number(count, "a count")?,
        inverse: number(inverse, "1/(1-Percentile)")?,
    })
}

/// `#[Mean    =        0.068, StdDeviation   =        0.026]`.
fn pair(line: &str, first: &str, second: &str) -> Result<(f64, f64), String> {
    let wrong = || format!("{line:?} does not tell {first} and {second}");
    let inside = line.strip_prefix("#[").and_then(|line| line.strip_suffix(']')).ok_or_else(wrong)?;
    let (left, right) = inside.split_once(',').ok_or_else(wrong)?;
    let value = |text: &str, name: &str| {
        let (own, value) = text.split_once('=').ok_or_else(wrong)?;
        if own.trim() == name { number(value, name) } else { Err(wrong()) }
    };
    Ok((value(left, first)?, value(right, second)?))
}

/// `  300 requests in 1.00s, 54.83KB read`.
fn requests(lines: &[&str]) -> Result<u64, String> {
    let found = lines.iter().find_map(|line| line.strip_suffix("B read")?.split_once(" requests in "));
    let (count, rest) = found.ok_or("nothing says how many requests there were")?;
    let (taken, _bytes) = rest.split_once(", ").ok_or_else(|| format!("{rest:?} are not time and bytes"))?;
    time(taken)?;
    number(count, "the count of requests")
}

/// `connect 0, read 3, write 0, timeout 0`.
fn socket_errors(text: &str) -> Result<SocketErrors, String> {
    let counts: Vec<_> = text.split(", ").map(|part| part.split_once(' ').unwrap_or((part, ""))).collect();
    let [("connect", connect), ("read", read), ("write", write), ("timeout", timeout)] = counts[..] else {
        return Err(format!("{text:?} are not wrk2's errors"));
    };
    let count = |text| number(text, "a count of errors");
    Ok(SocketErrors { connect: count(connect)?, read: count(read)?, write: count(write)?, timeout: count(timeout)? })
}
