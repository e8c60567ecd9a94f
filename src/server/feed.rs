//! What hyper gets to read on a connection while klad stops: one request at a time.
//!
//! ```text
//!   Off       hyper reads the socket itself, as far ahead as there is
//!   Wanted    klad stops: nothing new is read before hyper has been taken apart, which shows what it has read ahead
//!   On        ─▶ rest ─▶ head ─▶ body ─▶│ next request │        hyper never holds a byte beyond the request that it answers
//! ```
//!
//! Then it is known at each answer whether another request stands behind it, and `Connection: close` can be said in the last
//! answer and no earlier: what a client has sent behind a closing answer would be lost. What a request is, hyper decides;
//! this only counts along, and where it loses count (`Part::Open`) it gives everything, and at worst an answer says too
//! early that the connection closes.
//!
//! Off costs one look at a cell for each read. One connection's, on its worker's thread. Called by `io` and `connection`.

use std::cell::{Cell, RefCell};

use bytes::BytesMut;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

use super::stream::Stream;

/// One connection's.
#[derive(Debug)]
pub(super) struct Feed {
    state: Cell<State>,
    /// Was read from the socket, and not given to hyper yet.
    rest: RefCell<BytesMut>,
    part: Cell<Part>,
    /// A request has stood behind another: more may be on their way.
    pipelines: Cell<bool>,
    /// Requests that were answered since klad stops.
    answered: Cell<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    Wanted,
    On,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A head, or blank lines before it.
    Head {
        /// The line so far is empty.
        blank: bool,
        /// A line that is not empty has begun.
        begun: bool,
    },
    /// A head is complete, and nobody has said yet what follows it.
    AfterHead,
    /// So many bytes of a body.
    Body(u64),
    /// The line with a chunk's size.
    ChunkSize {
        /// So far.
        size: u64,
        /// The digits are over.
        read: bool,
    },
    /// So many bytes of a chunk and the end of its line.
    Chunk(u64),
    /// Lines behind the last chunk.
    Trailers {
        /// The line so far is empty.
        blank: bool,
    },
    /// Not known.
    Open,
}

const NEXT_REQUEST: Part = Part::Head { blank: true, begun: false };

impl Feed {
    pub(super) fn new() -> Feed {
        Feed {
            state: Cell::new(State::Off),
            rest: RefCell::default(),
            part: Cell::new(NEXT_REQUEST),
            pipelines: Cell::new(false),
            answered: Cell::new(0),
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.state.get() == State::Off
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.state.get() == State::Wanted
    }

    pub(super) fn is_on(&self) -> bool {
        self.state.get() == State::On
    }

    /// klad stops: as soon as hyper is between two requests, it is to be taken apart.
    pub(super) fn want(&self) {
        if self.is_off() {
            self.state.set(State::Wanted);
        }
    }

    /// From now on hyper, which is between two requests and is to be a new one, gets what is given here; `read_ahead` first.
    pub(super) fn begin(&self, read_ahead: &[u8]) {
        self.take_in(read_ahead);
        self.state.set(State::On);
    }

    /// Bytes from the socket.
    pub(super) fn take_in(&self, bytes: &[u8]) {
        self.rest.borrow_mut().extend_from_slice(bytes);
    }

    /// Gives hyper what it may have now, and tells how many bytes that is: none only if there are none.
    pub(super) fn give(&self, buffer: &mut ReadBuf<'_>) -> usize {
        let mut rest = self.rest.borrow_mut();
        let mut given = 0;
        loop {
            let offered = rest.len().min(buffer.remaining());
            if offered == 0 {
                return given;
            }
            let (count, part) = self.part.get().pass(&rest[..offered]);
            self.part.set(part);
            buffer.put_slice(&rest.split_to(count));
            given += count;
            if !matches!(part, Part::ChunkSize { .. } | Part::Chunk(_) | Part::Trailers { .. }) {
                return given;
            }
        }
    }

    /// hyper has read a head, whose body has so many bytes, or comes in chunks.
    pub(super) fn head_was_read(&self, body_bytes: impl FnOnce() -> Option<u64>) {
        if self.is_on() && self.part.get() == Part::AfterHead {
            self.part.set(match body_bytes() {
                Some(0) => NEXT_REQUEST,
                Some(bytes) => Part::Body(bytes),
                None => Part::ChunkSize { size: 0, read: false },
            });
        }
    }

    /// Whether there is more behind the request that is answered now. Blank lines behind a body are nothing.
    pub(super) fn has_more(&self, stream: &Stream) -> bool {
        let more = self.rest.borrow().iter().any(|byte| !b"\r\n".contains(byte))
            || has_arrived(stream.tcp())
            || stream.has_unread();
        if more {
            self.pipelines.set(true);
        }
        more
    }

    /// A request is answered; tells how many were since klad stops.
    pub(super) fn count_answer(&self) -> u32 {
        self.answered.set(self.answered.get().saturating_add(1));
        self.answered.get()
    }

    /// Whether a request has stood behind another.
    pub(super) fn pipelines(&self) -> bool {
        self.pipelines.get()
    }
}

/// Whether the kernel holds bytes that the client has sent.
fn has_arrived(stream: &TcpStream) -> bool {
    rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes > 0)
}

impl Part {
    /// How many of `bytes`, of which there is at least one, hyper may have before the next look, and what comes after them.
    fn pass(self, bytes: &[u8]) -> (usize, Part) {
        let all = bytes.len();
        match self {
            Part::Head { blank, begun } => pass_head(bytes, blank, begun),
            // hyper reads on: it does not see a whole head where this does.
            Part::AfterHead | Part::Open => (all, Part::Open),
            Part::Body(left) => pass_count(all, left, NEXT_REQUEST, Part::Body),
            Part::ChunkSize { size, read } => pass_chunk_size(bytes, size, read),
            Part::Chunk(left) => pass_count(all, left, Part::ChunkSize { size: 0, read: false }, Part::Chunk),
            Part::Trailers { blank } => pass_trailers(bytes, blank),
        }
    }
}

fn pass_count(offered: usize, left: u64, after: Part, rest: fn(u64) -> Part) -> (usize, Part) {
    let count = usize::try_from(left).map_or(offered, |left| left.min(offered));
    let left = left - count as u64;
    (count, if left == 0 { after } else { rest(left) })
}

fn pass_head(bytes: &[u8], mut blank: bool, mut begun: bool) -> (usize, Part) {
    for (position, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' if blank && begun => return (position + 1, Part::AfterHead),
            b'\n' => blank = true,
            b'\r' => {}
            _ => (blank, begun) = (false, true),
        }
    }
    (bytes.len(), Part::Head { blank, begun })
}

fn pass_chunk_size(bytes: &[u8], mut size: u64, mut read: bool) -> (usize, Part) {
    for (position, byte) in bytes.iter().enumerate() {
        let digit = char::from(*byte).to_digit(16).filter(|_| !read);
        match (byte, digit) {
            (b'\n', _) if size == 0 => return (position + 1, Part::Trailers { blank: true }),
            (b'\n', _) => return (position + 1, Part::Chunk(size.saturating_add(2))),
            // hyper refuses such a size.
            (_, Some(_)) if size.leading_zeros() < 4 => return (bytes.len(), Part::Open),
            (_, Some(digit)) => size = size * 16 + u64::from(digit),
            (_, None) => read = true,
        }
    }
    (bytes.len(), Part::ChunkSize { size, read })
}

fn pass_trailers(bytes: &[u8], mut blank: bool) -> (usize, Part) {
    for (position, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' if blank => return (position + 1, NEXT_REQUEST),
            b'\n' => blank = true,
            b'\r' => {}
            _ => blank = false,
        }
    }
    (bytes.len(), Part::Trailers { blank })
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    /// Gives `bytes`, `step` at a time, and answers the requests that hyper would see.
    fn requests(bytes: &[u8], step: usize, body: impl Fn(&[u8]) -> Option<u64>) -> Vec<Vec<u8>> {
        let feed = Feed::new();
        feed.begin(b"");
        let mut requests = vec![Vec::new()];
        for some in bytes.chunks(step) {
            feed.take_in(some);
            loop {
                let mut room = [MaybeUninit::uninit(); 7];
                let mut buffer = ReadBuf::uninit(&mut room);
                if feed.give(&mut buffer) == 0 {
                    break;
                }
                let request = requests.last_mut().expect("one at least");
                request.extend_from_slice(buffer.filled());
                feed.head_was_read(|| body(request));
                let blank = request.iter().all(|byte| b"\r\n".contains(byte));
                if feed.part.get() == NEXT_REQUEST && !blank {
                    requests.push(Vec::new());
                }
            }
        }
        assert_eq!(requests.pop().as_deref(), Some(&[][..]), "nothing is left over");
        requests
    }

    #[test]
    fn each_request_is_given_alone_however_it_comes() {
        let get = b"GET /v0/status HTTP/1.1\r\nHost: a\r\n\r\n";
        let bare = b"\r\n\nGET / HTTP/1.1\nHost: a\n\n";
        let put = b"PUT /v0/entity?id=k HTTP/1.1\r\nContent-Length: 5\r\n\r\n\n\n\r\n\r";
        let chunks = b"PUT /c HTTP/1.1\r\n\r\n2;x=a\r\n\r\n\r\n0B\r\n\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\nT: v\r\n\r\n";
        let all: Vec<&[u8]> = vec![get, put, bare, chunks, get, chunks, chunks, put, get];
        let body = |request: &[u8]| {
            if request.starts_with(b"PUT /c") { None } else { Some(if request.starts_with(b"PUT") { 5 } else { 0 }) }
        };
        for step in [1, 2, 3, 5, 8, 1_000] {
            assert_eq!(requests(&all.concat(), step, body), all, "{step} bytes at a time");
        }
    }

    #[test]
    fn where_count_is_lost_everything_is_given() {
        let feed = Feed::new();
        feed.begin(b"GET / HTTP/1.1\r\n\r\nmore");
        let mut room = [0; 100];
        let mut buffer = ReadBuf::new(&mut room);
        assert_eq!(feed.give(&mut buffer), 18);
        // hyper has not called the service, and asks for more.
        assert_eq!(feed.give(&mut buffer), 4);
        feed.take_in(b"ffffffffffffffffff\r\n");
        assert_eq!(feed.give(&mut buffer), 20);
        assert_eq!(Part::ChunkSize { size: 0, read: false }.pass(b"11111111111111111\r\n1").1, Part::Open);
    }
}
