//! Builds requests: chooses operations by their weights, and writes keys and values as bytes of HTTP.
//!
//! As much as possible is prepared before the run. A request is then a few copies into a buffer that is used again.
//! Called by the generator threads, each with its own [`Requests`].

use std::str::FromStr;
use std::sync::Arc;

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::author::{Author, Pipeline};
use crate::keys::{Chooser, KeyFormat, Keys, write_number};
use crate::recorder::Operation;
use crate::units::SizeRange;

/// The operations of `--workload`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The name as given.
    pub name: String,
    /// Operations with their weights, which are more than 0.
    pub weights: Vec<(Operation, f64)>,
    /// Whether keys are zipfian by default, as in YCSB.
    pub zipfian: bool,
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        use Operation::{Delete, Get, Put};
        let (weights, zipfian) = match text {
            "get" => (vec![(Get, 1.0)], false),
            "put" => (vec![(Put, 1.0)], false),
            "delete" => (vec![(Delete, 1.0)], false),
            "ycsb-a" => (vec![(Get, 0.5), (Put, 0.5)], true),
            "ycsb-b" => (vec![(Get, 0.95), (Put, 0.05)], true),
            "ycsb-c" => (vec![(Get, 1.0)], true),
            _ => (parse_mixed(text)?, false),
        };
        Ok(Mix { name: text.to_owned(), weights, zipfian })
    }
}

fn parse_mixed(text: &str) -> Result<Vec<(Operation, f64)>, String> {
    let hint = || format!("{text:?} is not one of get, put, delete, mixed:95/5, ycsb-a, ycsb-b, ycsb-c");
    let (gets, puts) = text.strip_prefix("mixed:").and_then(|shares| shares.split_once('/')).ok_or_else(hint)?;
    let share = |text: &str| text.parse::<u8>().map_err(|_| hint()).map(f64::from);
    let (gets, puts) = (share(gets)?, share(puts)?);
    if (gets + puts - 100.0).abs() > 0.5 {
        return Err(format!("{text:?}: the shares of get and put are percentages, and their sum must be 100"));
    }
    let all = [(Operation::Get, gets), (Operation::Put, puts)];
    Ok(all.into_iter().filter(|(_, share)| *share > 0.0).collect())
}

/// The values that PUT sends.
#[derive(Debug)]
pub enum Values {
    /// Random bytes, which do not compress; compressible values would make a store that compresses look faster.
    Random {
        /// The sizes of values.
        sizes: SizeRange,
        /// Random bytes; each value is a part of them.
        pool: Vec<u8>,
    },
    /// Text made from the key's number.
    Format(KeyFormat),
}

/// The number of places in the pool at which a value may begin. Each value begins at a random place, so consecutive
/// values almost always differ.
const POOL_OFFSETS: usize = 64 << 10;

impl Values {
    /// Random bytes, the same for the same `seed`.
    #[must_use]
    pub fn random(sizes: SizeRange, seed: u64) -> Values {
        let mut pool = vec![0; sizes.max + POOL_OFFSETS];
        Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(&mut pool);
        Values::Random { sizes, pool }
    }
}

/// The target and the headers of a request, with places for the key in the target.
#[derive(Clone, Debug)]
pub struct Template {
    /// The request's target, split at each `{key}`.
    pub target: Vec<Vec<u8>>,
    /// Header lines with their line ends, including `Host`.
    pub headers: Vec<u8>,
}

/// A request that is the same each time, except for its key if it has one.
#[derive(Clone, Debug)]
pub struct FixedRequest {
    /// The method of the request.
    pub method: String,
    /// The body of the request, if it has one.
    pub body: Option<Vec<u8>>,
}

/// The form of requests with `--batch`: a batch of klad (RFC 8742, a sequence of CBOR maps) in one POST.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The number of operations of one request, at least 1.
    pub items: u64,
}

/// The requests of a run, shared by its threads.
#[derive(Debug)]
pub struct Workload {
    /// Operations with their weights; if `fixed` is set, only [`Operation::Request`].
    pub weights: Vec<(Operation, f64)>,
    /// The target and headers of every request.
    pub template: Template,
    /// The request that [`Operation::Request`] sends; `None` with `--workload`.
    pub fixed: Option<FixedRequest>,
    /// Puts many operations into each request; `None` without `--batch`.
    pub batch: Option<BatchRequest>,
    /// The number of requests that are sent together, 1 to 64.
    pub pipeline: u32,
    /// The keys to choose from.
    pub keys: Keys,
    /// The exponent of zipfian and latest keys.
    pub zipf_exponent: f64,
    /// The values that PUT sends.
    pub values: Values,
    /// The seed of all choices.
    pub seed: u64,
}

/// A request that was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation of the request.
    pub operation: Operation,
    /// The number of the request's key; 0 if the request has no key.
    pub key: u64,
    /// The number of answers to expect: more than one for a pipeline.
    pub answers: u32,
    /// A bit mask of those among the first 64 answers that have no body because they answer a HEAD; bit 0 is the
    /// first.
    pub bodiless: u64,
}

impl Request {
    /// Whether the answer with this number, from 0, has no body because it answers a HEAD.
    #[must_use]
    pub fn is_bodiless(&self, answer: u32) -> bool {
        self.bodiless.checked_shr(answer).is_some_and(|mask| mask & 1 == 1)
    }
}

/// Makes the requests of one thread.
#[derive(Debug)]
pub struct Requests {
    workload: Arc<Workload>,
    chooser: Chooser,
    random: Xoshiro256PlusPlus,
    /// The key before percent-encoding.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The body of a batch.
    body: Vec<u8>,
    author: Option<Box<dyn Author>>,
}

impl Requests {
    /// The requests of the thread with this number. Each thread has its own random numbers.
    #[must_use]
    pub fn new(workload: Arc<Workload>, thread: usize) -> Requests {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(workload.seed);
        for _ in 0..thread {
            random.jump();
        }
        let chooser = Chooser::new(&workload.keys, workload.zipf_exponent);
        Requests { workload, chooser, random, key: Vec::new(), value: Vec::new(), body: Vec::new(), author: None }
    }

    /// Lets an author write the requests, if there is one.
    #[must_use]
    pub fn with_author(self, author: Option<Box<dyn Author>>) -> Requests {
        Requests { author, ..self }
    }

    /// The author that writes the requests, if there is one.
    pub fn author(&mut self) -> Option<&mut (dyn Author + 'static)> {
        self.author.as_deref_mut()
    }

    /// Chooses an operation by the weights.
    pub fn operation(&mut self) -> Operation {
        let weights = &self.workload.weights;
        if weights.len() == 1 {
            return weights[0].0;
        }
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.random_range(0.0..total);
        for (operation, weight) in weights {
            if at < *weight {
                return *operation;
            }
            at -= weight;
        }
        // Only rounding errors lead here.
        weights[0].0
    }

    /// Appends the next request to `into`. Returns `None` if a script writes the requests, has stopped its thread, and
    /// makes no request.
    ///
    /// # Errors
    /// A message, if the script fails.
    pub fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Request>, String> {
        if let Some(author) = &mut self.author {
            let of = |Pipeline { requests: answers, bodiless }| Request {
                operation: Operation::Request,
                key: 0,
                answers,
                bodiless,
            };
            return Ok(author.next(into)?.map(of));
        }
        if let Some(BatchRequest { items }) = self.workload.batch {
            return Ok(Some(self.write_batch(items, into)));
        }
        let operation = self.operation();
        let mut request = self.write_next(operation, into);
        for number in 1..self.workload.pipeline {
            request.bodiless |= self.write_next(operation, into).bodiless << number;
            request.answers += 1;
        }
        Ok(Some(request))
    }

    fn write_next(&mut self, operation: Operation, into: &mut Vec<u8>) -> Request {
        let keys = &self.workload.keys;
        let key = match operation {
            Operation::Put => self.chooser.put(keys, &mut self.random),
            Operation::Request if self.workload.template.target.len() == 1 => 0,
            _ => self.chooser.existing(keys, &mut self.random),
        };
        self.write(operation, key, into)
    }

    /// Records that a request has ended, so that the order `latest` may request the key of a PUT.
    pub fn settle(&self, request: Request) {
        if request.operation == Operation::Put {
            self.workload.keys.settle(request.key);
        }
    }

    /// Appends a request with `items` operations, each chosen by the weights.
    fn write_batch(&mut self, items: u64, into: &mut Vec<u8>) -> Request {
        self.body.clear();
        for _ in 0..items {
            let operation = self.operation();
            let workload = &*self.workload;
            let key = match operation {
                Operation::Put => self.chooser.put(&workload.keys, &mut self.random),
                _ => self.chooser.existing(&workload.keys, &mut self.random),
            };
            self.key.clear();
            workload.keys.write(key, &mut self.key);
            let value =
                (operation == Operation::Put).then(|| value(&workload.values, key, &mut self.value, &mut self.random));
            write_item(operation.name(), &self.key, value, &mut self.body).expect("a vector takes all bytes");
        }
        into.extend_from_slice(b"POST ");
        into.extend_from_slice(&self.workload.template.target[0]);
        into.extend_from_slice(b" HTTP/1.1\r\n");
        into.extend_from_slice(&self.workload.template.headers);
        into.extend_from_slice(b"Content-Type: application/cbor-seq\r\n");
        write_body(&self.body, into);
        Request { operation: Operation::Batch, key: 0, answers: 1, bodiless: 0 }
    }

    fn write(&mut self, operation: Operation, key: u64, into: &mut Vec<u8>) -> Request {
        let workload = &*self.workload;
        let method = match (&workload.fixed, operation) {
            (Some(fixed), Operation::Request) => fixed.method.as_str(),
            (_, Operation::Put) => "PUT",
            (_, Operation::Delete) => "DELETE",
            _ => "GET",
        };
        into.extend_from_slice(method.as_bytes());
        into.push(b' ');
        let mut pieces = workload.template.target.iter();
        into.extend_from_slice(pieces.next().expect("a target has a piece"));
        if workload.template.target.len() > 1 {
            self.key.clear();
            workload.keys.write(key, &mut self.key);
        }
        for piece in pieces {
            percent_encode(&self.key, into);
            into.extend_from_slice(piece);
        }
        into.extend_from_slice(b" HTTP/1.1\r\n");
        into.extend_from_slice(&workload.template.headers);
        match (&workload.fixed, operation) {
            (_, Operation::Put) => write_body(value(&workload.values, key, &mut self.value, &mut self.random), into),
            (Some(FixedRequest { body: Some(body), .. }), _) => write_body(body, into),
            // A method that usually has a body must say that it has none (RFC 9110, section 8.6).
            (Some(_), _) if matches!(method, "POST" | "PUT" | "PATCH") => write_body(b"", into),
            _ => into.extend_from_slice(b"\r\n"),
        }
        Request { operation, key, answers: 1, bodiless: u64::from(method == "HEAD") }
    }
}

/// Appends one operation of a batch.
fn write_item(
    operation: &str,
    key: &[u8],
    value: Option<&[u8]>,
    into: &mut Vec<u8>,
) -> Result<(), minicbor::encode::Error<std::convert::Infallible>> {
    let mut encoder = minicbor::Encoder::new(into);
    encoder.map(2 + u64::from(value.is_some()))?.str("op")?.str(operation)?.str("key")?.bytes(key)?;
    if let Some(value) = value {
        encoder.str("value")?.bytes(value)?;
    }
    Ok(())
}

/// Returns the value of the key with the number `key`. A value that is made by a format is written to `text`.
pub(super) fn value<'a>(
    values: &'a Values,
    key: u64,
    text: &'a mut Vec<u8>,
    random: &mut Xoshiro256PlusPlus,
) -> &'a [u8] {
    match values {
        Values::Random { sizes, pool } => {
            let size = if sizes.min == sizes.max { sizes.max } else { random.random_range(sizes.min..=sizes.max) };
            let from = random.random_range(0..POOL_OFFSETS);
            &pool[from..from + size]
        }
        Values::Format(format) => {
            text.clear();
            format.write(key, text);
            text
        }
    }
}

fn write_body(body: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"Content-Length: ");
    write_number(body.len() as u64, 0, into);
    into.extend_from_slice(b"\r\n\r\n");
    into.extend_from_slice(body);
}

/// Appends bytes, percent-encoding all but the unreserved characters of RFC 3986.
fn percent_encode(bytes: &[u8], into: &mut Vec<u8>) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(*byte);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            into.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyNames, Order};

    fn workload(mix: &str, target: &[&str], fixed: Option<FixedRequest>) -> Arc<Workload> {
        let weights =
            if fixed.is_some() { vec![(Operation::Request, 1.0)] } else { mix.parse::<Mix>().expect("valid").weights };
        Arc::new(Workload {
            weights,
            template: Template {
                target: target.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
                headers: b"Host: h\r\n".to_vec(),
            },
            fixed,
            batch: None,
            pipeline: 1,
            keys: Keys::new(KeyNames::Format("k {}".parse().expect("valid")), Order::Sequential, 0, None),
            zipf_exponent: 0.99,
            values: Values::Format("v{}".parse().expect("valid")),
            seed: 1,
        })
    }

    fn next_bytes(requests: &mut Requests) -> Vec<u8> {
        let mut bytes = Vec::new();
        requests.next(&mut bytes).expect("there is no author that could fail");
        bytes
    }

    fn next(requests: &mut Requests) -> String {
        String::from_utf8(next_bytes(requests)).expect("text")
    }

    #[test]
    fn requests_follow_the_protocol() {
        let mut requests = Requests::new(workload("put", &["/v0/entity?id=", ""], None), 0);
        assert_eq!(next(&mut requests), "PUT /v0/entity?id=k%200 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nv0");
        assert_eq!(next(&mut requests), "PUT /v0/entity?id=k%201 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nv1");
        let mut requests = Requests::new(workload("get", &["/", "/x/", ""], None), 0);
        assert_eq!(next(&mut requests), "GET /k%200/x/k%200 HTTP/1.1\r\nHost: h\r\n\r\n");
    }

    #[test]
    fn a_batch_is_a_sequence_of_maps() {
        let one = Arc::into_inner(workload("put", &["/v1/batch"], None)).expect("not shared");
        let mut requests = Requests::new(Arc::new(Workload { batch: Some(BatchRequest { items: 2 }), ..one }), 0);
        let item = |number| format!("\u{a3}bopcputckeyCk {number}evalueBv{number}").replace('\u{a3}', "");
        let sent = next_bytes(&mut requests);
        let text = String::from_utf8_lossy(&sent);
        assert!(
            text.starts_with("POST /v1/batch HTTP/1.1\r\nHost: h\r\nContent-Type: application/cbor-seq\r\n"),
            "{text}"
        );
        let body = &sent[sent.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4..];
        let expected = [b"\xA3", item(0).as_bytes(), b"\xA3", item(1).as_bytes()].concat();
        assert_eq!(body.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn a_pipeline_is_several_requests_of_one_operation() {
        let one = Arc::into_inner(workload("get", &["/", ""], None)).expect("not shared");
        let mut requests = Requests::new(Arc::new(Workload { pipeline: 3, ..one }), 0);
        let (mut sent, get) = (Vec::new(), |key| format!("GET /k%20{key} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let request = requests.next(&mut sent).expect("no script").expect("no end");
        assert_eq!((request.operation, request.answers, request.bodiless), (Operation::Get, 3, 0));
        assert_eq!(String::from_utf8_lossy(&sent), [get(0), get(1), get(2)].concat());
        let head = FixedRequest { method: "HEAD".to_owned(), body: None };
        let one = Arc::into_inner(workload("get", &["/"], Some(head))).expect("not shared");
        let weights = vec![(Operation::Request, 1.0)];
        let mut requests = Requests::new(Arc::new(Workload { pipeline: 64, weights, ..one }), 0);
        let request = requests.next(&mut Vec::new()).expect("no script").expect("no end");
        assert_eq!((request.answers, request.bodiless), (64, u64::MAX));
    }

    #[test]
    fn a_fixed_request_is_sent_as_it_was_given() {
        let fixed = FixedRequest { method: "POST".to_owned(), body: Some(b"hello".to_vec()) };
        let mut requests = Requests::new(workload("", &["/a"], Some(fixed)), 0);
        assert_eq!(next(&mut requests), "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
        let fixed = FixedRequest { method: "HEAD".to_owned(), body: None };
        let mut requests = Requests::new(workload("", &["/a"], Some(fixed)), 0);
        let head = requests.next(&mut Vec::new()).expect("no author fails").expect("no author stops");
        assert!(head.is_bodiless(0) && !head.is_bodiless(1) && !head.is_bodiless(64));
    }

    #[test]
    fn operations_have_their_shares() {
        let mut requests = Requests::new(workload("mixed:95/5", &["/"], None), 0);
        let puts = (0..10_000).filter(|_| requests.operation() == Operation::Put).count();
        assert!((400..600).contains(&puts), "{puts}");
    }

    #[test]
    fn mixes_are_named() {
        assert!("ycsb-a".parse::<Mix>().expect("valid").zipfian);
        assert_eq!("mixed:100/0".parse::<Mix>().expect("valid").weights.len(), 1);
        for wrong in ["", "mixed", "mixed:50", "mixed:50/51", "mixed:-5/105", "ycsb-d", "mixed:a/b"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn random_values_have_sizes_within_their_range_and_differ() {
        let values = Values::random(SizeRange { min: 10, max: 20 }, 1);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let all: Vec<Vec<u8>> =
            (0..1000).map(|key| value(&values, key, &mut Vec::new(), &mut random).to_vec()).collect();
        assert_eq!(all.iter().map(Vec::len).min(), Some(10));
        assert_eq!(all.iter().map(Vec::len).max(), Some(20));
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
