//! Scans and removals of ranges.
//!
//! ```text
//!   head ─▶ route ─▶ Request ─┬▶ page     JSON: entries up to a limit, and a cursor
//!                             ├▶ count    JSON: only their number
//!                             └▶ stream   JSON lines or a CBOR sequence, entries while the client takes them
//!   Modules: keys (bounds and groups), pages (steps of a scan), encode (formats), stream (bodies), cursor (cursors)
//! ```
//!
//! A scan may end before its range does, at its limit, at a limit of bytes, or when its time is over. Then its answer
//! has a cursor. Only `complete` says that nothing is left, because an answer without entries may have a cursor too.
//! `route` and `v1` call this.

use bytes::Bytes;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, VARY};
use hyper::{HeaderMap, StatusCode};

use crate::execution::admission::BodyPermit;
use crate::http::answer::{Fields, Reply};
use crate::http::api_error::ApiError;
use crate::http::body::Content;
use crate::http::service::Options;
use crate::http::v1::parameters::{Parameters, bad};
use crate::http::v1::route::{Action, durability};
use crate::http::v1::scan::encode::{Encoder, Format};
use crate::http::v1::scan::keys::{Keys, Range};
use crate::http::v1::scan::pages::{Item, Scan, Step, StepLimits, Tried};
use crate::http::v1::scan::stream::step_limits;
use crate::http::v1::{Context, condition};
use crate::limits::{
    SCAN_DELIMITER_BYTES_MAX, SCAN_LIMIT_MAX, SCAN_PAGE_BYTES_MAX, SCAN_PAGE_ENTRIES, SCAN_PAGE_ENTRIES_MAX,
    SCAN_STREAM_STEP_ENTRIES_MAX,
};
use klad_storage::ChangeKind;
use klad_storage::limits::{CACHED_VALUE_BYTES_MAX, SCAN_STEP_BYTES_MAX};
use klad_storage::operation::{Outcome, RangeRemoval};

mod cursor;
mod encode;
mod keys;
mod pages;
mod stream;

pub(super) use encode::text_piece;

pub(in crate::http) use stream::ScanBody;

/// The parameters and headers of a scan.
pub(super) struct Request {
    keys: Keys,
    keys_only: bool,
    answer: Answer,
    /// The limit that the client gave.
    limit: Option<u64>,
}

/// The form of the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Page,
    Count,
    Stream(Format),
}

/// What the parameters of a scan or of a removal say about its range.
struct Bounds {
    prefix: Option<Vec<u8>>,
    start: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
}

/// Reads the head of a scan.
pub(super) fn route(query: &str, headers: &HeaderMap, options: &Options) -> Result<Request, ApiError> {
    let known = [
        "prefix",
        "prefix64",
        "start",
        "start64",
        "end",
        "end64",
        "delimiter",
        "reverse",
        "cursor",
        "limit",
        "keys_only",
        "count",
    ];
    let parameters = Parameters::read(query, &known)?;
    let answer = if parameters.switch("count")? { Answer::Count } else { accepted(headers) };
    let entries_max = if answer == Answer::Page { SCAN_PAGE_ENTRIES_MAX } else { SCAN_LIMIT_MAX };
    let limit = match parameters.text("limit")? {
        Some(text) => match text.parse() {
            Ok(limit) if (1..=entries_max).contains(&limit) => Some(limit),
            _ => return Err(bad("limit", &format!("a number from 1 to {entries_max}"))),
        },
        None => None,
    };
    let keys = read_keys(&parameters, options)?;
    if answer == Answer::Count && !keys.delimiter.is_empty() {
        return Err(bad("delimiter", "absent with count"));
    }
    Ok(Request { keys, keys_only: parameters.switch("keys_only")?, answer, limit })
}

/// Returns the form that the client wants. Without an `Accept` header, or with one that names no known type, the form
/// is a JSON page.
fn accepted(headers: &HeaderMap) -> Answer {
    let mut best = (Answer::Page, 0.0);
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let answer = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "application/x-ndjson" => Answer::Stream(Format::JsonLines),
            "application/cbor-seq" => Answer::Stream(Format::CborSequence),
            "application/json" => Answer::Page,
            _ => continue,
        };
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if quality > best.1 {
            best = (answer, quality);
        }
    }
    best.0
}

/// Reads the keys, from the cursor if there is one. With a cursor, each other parameter must be absent or the same as
/// in the first request.
fn read_keys(parameters: &Parameters<'_>, options: &Options) -> Result<Keys, ApiError> {
    let Bounds { prefix, start, end } = read_bounds(parameters, options)?;
    let delimiter = parameters.bytes("delimiter");
    if delimiter.is_some_and(|delimiter| !(1..=SCAN_DELIMITER_BYTES_MAX).contains(&delimiter.len())) {
        return Err(bad("delimiter", &format!("1 to {SCAN_DELIMITER_BYTES_MAX} bytes")));
    }
    let reverse = parameters.switch("reverse")?;
    let Some(cursor) = parameters.bytes("cursor") else {
        let (prefix, start) = (prefix.unwrap_or_default(), start.unwrap_or_default());
        return Ok(Keys {
            start_checksum: cursor::checksum(Some(&start)),
            end_checksum: cursor::checksum(end.as_deref()),
            prefix_bytes: prefix.len(),
            range: Range::of(&prefix, &start, end),
            reverse,
            delimiter: Bytes::copy_from_slice(delimiter.unwrap_or_default()),
        });
    };
    let keys = cursor::decode(cursor)?;
    let same = prefix.is_none_or(|prefix| keys.range.from[..keys.prefix_bytes] == *prefix)
        && start.is_none_or(|start| cursor::checksum(Some(&start)) == keys.start_checksum)
        && end.is_none_or(|end| cursor::checksum(Some(&end)) == keys.end_checksum)
        && delimiter.is_none_or(|delimiter| *delimiter == *keys.delimiter)
        && (parameters.bytes("reverse").is_none() || reverse == keys.reverse);
    if same { Ok(keys) } else { Err(ApiError::BadCursor) }
}

fn read_bounds(parameters: &Parameters<'_>, options: &Options) -> Result<Bounds, ApiError> {
    // A bound may be the first key after the longest key, which is one byte longer.
    let bytes_max = options.key_bytes_max + 1;
    let prefix = parameters.binary("prefix", "prefix64", bytes_max)?;
    let start = parameters.binary("start", "start64", bytes_max)?;
    let end = parameters.binary("end", "end64", bytes_max)?;
    if end.as_ref().is_some_and(Vec::is_empty) {
        // No key is before an empty `end`, so the client hardly means this.
        return Err(ApiError::EmptyParameter("end"));
    }
    Ok(Bounds { prefix, start, end })
}

/// Reads the head of a removal. An empty prefix or start is an error, because `?prefix=$P` with an unset variable would
/// remove everything. A client that wants to remove everything sends `all=true`.
pub(super) fn route_removal(query: &str, headers: &HeaderMap, options: &Options) -> Result<Action, ApiError> {
    let known = ["prefix", "prefix64", "start", "start64", "end", "end64", "all", "durability"];
    let parameters = Parameters::read(query, &known)?;
    if condition::of_write(headers)?.is_some() {
        return Err(ApiError::BadCondition("the removal of a range takes no condition"));
    }
    let Bounds { prefix, start, end } = read_bounds(&parameters, options)?;
    for (name, value) in [("prefix", &prefix), ("start", &start)] {
        if value.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::EmptyParameter(name));
        }
    }
    let bounded = prefix.is_some() || start.is_some() || end.is_some();
    match (parameters.switch("all")?, bounded) {
        (true, true) => return Err(bad("all", "absent with prefix, start or end")),
        (false, false) => return Err(ApiError::MissingParameter("prefix, start, end or all=true")),
        (true, false) | (false, true) => {}
    }
    let durability = durability(&parameters, headers)?.unwrap_or(options.durability);
    let Range { from, end } = Range::of(&prefix.unwrap_or_default(), &start.unwrap_or_default(), end);
    Ok(Action::RemoveRange { from, end, durability })
}

/// Removes a range and answers 204.
pub(super) async fn remove(context: &Context<'_>, removal: RangeRemoval) -> Result<Reply, ApiError> {
    context.worker.executor().writable(ChangeKind::Delete)?;
    let removed = context.worker.remove_range(removal, context.deadline, context.exchange.phases());
    let Outcome::Written { version, durability, .. } = removed.await? else {
        unreachable!("a removal of a range is written")
    };
    context.exchange.request().written(durability);
    let fields = Fields { durability: Some(durability), removal: Some(version), ..Fields::default() };
    Ok(Reply::new(StatusCode::NO_CONTENT, Content::bytes(Bytes::new())).with(fields))
}

/// Answers a scan. HEAD does the same work up to the first frame, so that its headers are those of GET.
pub(super) async fn answer(context: &Context<'_>, request: Request) -> Result<Reply, ApiError> {
    match request.answer {
        Answer::Page => page(context, request).await,
        Answer::Count => count(context, request).await,
        Answer::Stream(format) => stream(context, request, format).await,
    }
}

/// Returns the keys of a request, or `None` if its range is empty.
fn range(keys: &Keys) -> Option<Range> {
    (!keys.range.is_empty()).then(|| keys.range.clone())
}

async fn stream(context: &Context<'_>, request: Request, format: Format) -> Result<Reply, ApiError> {
    let Request { keys, keys_only, limit, .. } = request;
    let limit = limit.unwrap_or(u64::MAX);
    let rest = range(&keys);
    let scan = Scan::begin(context, keys, keys_only)?;
    // The first step runs before the head is sent, so that an error in this step still gets a status.
    let first = match rest {
        Some(rest) => scan.step(rest, step_limits(limit), context.deadline).await?,
        None => Step { items: Vec::new(), rest: None, permit: None },
    };
    let left = limit - first.items.len() as u64;
    let body = ScanBody::stream(Encoder::new(format, keys_only), scan, first, left);
    let content_type = match format {
        Format::CborSequence => "application/cbor-seq",
        Format::JsonLines | Format::JsonPage => "application/x-ndjson",
    };
    Ok(reply(content_type, None, Content::Scan(Box::new(body))))
}

async fn page(context: &Context<'_>, request: Request) -> Result<Reply, ApiError> {
    let scan = Scan::begin(context, request.keys.clone(), request.keys_only)?;
    let Gathered { entries, prefixes, rest, permit } = gather(context, &scan, &request).await?;
    scan.drop_snapshot();
    let next = rest.map(|rest| cursor::encode(&scan.keys, &rest));
    let mut encoder = Encoder::new(Format::JsonPage, request.keys_only);
    encoder.raw(b"{\"entries\":[");
    let mut behind = b"],".to_vec();
    if !request.keys.delimiter.is_empty() {
        behind.extend_from_slice(b"\"prefixes\":[");
        let mut listed = Encoder::new(Format::JsonPage, request.keys_only);
        for prefix in prefixes {
            listed.item(prefix);
        }
        behind.extend_from_slice(&listed.take());
        behind.extend_from_slice(b"],");
    }
    encode::end_to(&mut behind, next.as_deref());
    let link = next.map(|next| request.link(&next));
    let mut body = ScanBody::page(encoder, entries, behind, permit);
    let content = match body.take_whole() {
        Some(whole) => Content::bytes(whole),
        None => Content::Scan(Box::new(body)),
    };
    Ok(reply("application/json", link, content))
}

/// The items of a JSON page.
struct Gathered {
    entries: Vec<Item>,
    prefixes: Vec<Item>,
    rest: Option<Range>,
    permit: Option<BodyPermit>,
}

/// Reads the entries of a JSON page.
async fn gather(context: &Context<'_>, scan: &Scan, request: &Request) -> Result<Gathered, ApiError> {
    let mut page = Gathered { entries: Vec::new(), prefixes: Vec::new(), rest: range(&scan.keys), permit: None };
    let bytes_max = usize::try_from(SCAN_PAGE_BYTES_MAX).expect("it fits into memory");
    let (mut items_left, mut bytes) = (request.limit.unwrap_or(SCAN_PAGE_ENTRIES), 0_usize);
    let mut deadline = context.deadline;
    while let Some(rest) = page.rest.clone() {
        let bytes_left = bytes_max.saturating_sub(bytes);
        let limits = StepLimits {
            entries_max: usize::try_from(items_left).unwrap_or(usize::MAX).min(SCAN_STREAM_STEP_ENTRIES_MAX),
            bytes_max: bytes_left.min(SCAN_STEP_BYTES_MAX),
        };
        let step = match scan.try_step(&rest, limits, deadline.take()).await? {
            Tried::Step(step) => step,
            Tried::TooLarge(bytes) if bytes <= bytes_left => {
                scan.step(rest, StepLimits { bytes_max: bytes, ..limits }, None).await?
            }
            // The entry is a page by itself.
            Tried::TooLarge(_) if bytes == 0 => scan.step(rest, StepLimits { entries_max: 1, ..limits }, None).await?,
            Tried::TooLarge(_) => break,
        };
        items_left -= step.items.len() as u64;
        bytes += step.items.iter().map(bytes_of).sum::<usize>();
        let (entries, prefixes): (Vec<_>, Vec<_>) =
            step.items.into_iter().partition(|item| matches!(item, Item::Entry(_)));
        page.entries.extend(entries);
        page.prefixes.extend(prefixes);
        page.permit = step.permit.or(page.permit);
        page.rest = step.rest;
        if bytes > CACHED_VALUE_BYTES_MAX && page.permit.is_none() {
            // A slow client can hold the page in memory until the write timeout, so a large page needs a permit.
            // Without a permit, the page ends here.
            page.permit = context.worker.executor().budget().try_take(SCAN_PAGE_BYTES_MAX);
            if page.permit.is_none() {
                break;
            }
        }
        if items_left == 0 || bytes >= bytes_max || scan.is_over() {
            break;
        }
        // Yield, because otherwise the worker would serve no other connection while all steps end at once.
        tokio::task::yield_now().await;
    }
    Ok(page)
}

/// Returns how many bytes of memory an item needs.
fn bytes_of(item: &Item) -> usize {
    match item {
        Item::Prefix(prefix) => prefix.len(),
        Item::Entry(entry) => {
            let metadata = entry.value.attributes.as_ref().map_or(0, |own| own.metadata.len());
            entry.key.len() + entry.value.payload.len() + metadata
        }
    }
}

async fn count(context: &Context<'_>, request: Request) -> Result<Reply, ApiError> {
    let limit = request.limit.unwrap_or(u64::MAX);
    let scan = Scan::begin(context, request.keys.clone(), true)?;
    let (mut counted, mut rest, mut deadline) = (0, range(&scan.keys), context.deadline);
    while let Some(left) = rest {
        let step = scan.step(left, step_limits(limit - counted), deadline.take()).await?;
        counted += step.items.len() as u64;
        rest = step.rest;
        if counted == limit || scan.is_over() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let next = rest.map(|rest| cursor::encode(&scan.keys, &rest));
    let mut document = format!("{{\"count\":{counted},").into_bytes();
    encode::end_to(&mut document, next.as_deref());
    let link = next.map(|next| request.link(&next));
    Ok(reply("application/json", link, Content::bytes(document)))
}

impl Request {
    /// The target of the next page: the cursor, and the parameters that it does not carry.
    fn link(&self, cursor: &str) -> HeaderValue {
        let limit = self.limit.map_or(String::new(), |limit| format!("&limit={limit}"));
        let keys_only = if self.keys_only { "&keys_only=true" } else { "" };
        let count = if self.answer == Answer::Count { "&count=true" } else { "" };
        let link = format!("</v1/kv?cursor={cursor}{limit}{keys_only}{count}>; rel=\"next\"");
        HeaderValue::try_from(link).expect("base64url, digits and punctuation are valid")
    }
}

fn reply(content_type: &'static str, link: Option<HeaderValue>, content: Content) -> Reply {
    let mut others = HeaderMap::new();
    others.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    others.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    others.insert(VARY, HeaderValue::from_static("accept"));
    if let Some(link) = link {
        others.insert(LINK, link);
    }
    Reply::new(StatusCode::OK, content).with(Fields { others: Some(Box::new(others)), ..Fields::default() })
}
