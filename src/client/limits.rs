//! Limits of the client commands. Each has its unit, its reason, and what the command does when it is reached.

use std::ops::RangeInclusive;
use std::time::Duration;

use klad_server::limits::{KEY_BYTES_CEILING, VALUE_BYTES_CEILING, VALUE_BYTES_MAX};

/// How long client commands such as `klad get` try one address of a server before they try the next. The kernel makes
/// three attempts in this time.
pub(crate) const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client commands such as `klad get` fail if no byte is sent or received for this long. It is longer than
/// [`HEAD_TIMEOUT`](klad_server::limits::HEAD_TIMEOUT) and any wait in a queue, so that the server's answer comes
/// first.
pub(crate) const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long `klad put` waits for `100 Continue` before it sends the value without it. Some proxies do not forward
/// `100 Continue`.
pub(crate) const CLIENT_EXPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a value that `klad put` reads before it connects to the server, because the source, a person or a program,
/// may be slow, and a server does not wait long. The number is the default `--value-max`. `klad put` reads the rest of
/// a longer value while it sends the value.
pub(crate) const CLIENT_READ_AHEAD_BYTES: u64 = VALUE_BYTES_MAX;

/// Bytes of the head of an answer that client commands accept. A longer head is an error. Most heads of klad's own
/// answers are shorter than 300 bytes. Metadata adds up to 5 KiB, and a cursor in `Link` (two keys of at most 16 KiB in
/// base64) up to 44 KiB.
pub(crate) const CLIENT_HEAD_BYTES_MAX: usize = 64 << 10;

/// Bytes of an error answer that client commands read to find the reason. klad's own error answers are shorter than
/// 1,000 bytes. Client commands ignore a reason that is cut off.
pub(crate) const CLIENT_PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Bytes of a profile that `klad profile` accepts from a server or a file, before decompression. The command holds the
/// whole profile in memory. A larger profile is an error. Profiles of busy servers are smaller than 1 MiB.
pub(crate) const CLIENT_PROFILE_BYTES_MAX: usize = 64 << 20;

/// Bytes of an item, such as an entry of a scan or a line of a batch, that client commands accept; a longer item is an
/// error. The commands hold an item in memory until it is complete. JSON needs up to six characters for one byte of
/// text. Metadata and the names of members add less than 1 MiB.
pub(crate) const CLIENT_ITEM_BYTES_MAX: u64 = 6 * (VALUE_BYTES_CEILING + KEY_BYTES_CEILING) + (1 << 20);

/// Items that client commands send in one batch, if `/v1/limits` allows as many. A larger batch would not make an item
/// cheaper. `klad batch --atomic` sends all items in one batch.
pub(crate) const CLIENT_BATCH_ITEMS: u64 = 2_000;

/// Bytes of the body of a batch of several items that client commands send, if `/v1/limits` allows as many.
pub(crate) const CLIENT_BATCH_BYTES: u64 = 1 << 20;

/// How long `klad export` and `klad import` wait in all while the server rejects one request with 503, and how long
/// `klad watch` tries to connect again until it receives a line. After that the commands fail.
pub(crate) const CLIENT_PATIENCE: Duration = Duration::from_mins(1);

/// Minimum and maximum of the time that `klad export`, `klad import` and `klad watch` wait after a rejection. The
/// minimum also applies if the rejection names no time.
pub(crate) const CLIENT_PAUSE_RANGE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// Bytes of a JSON answer such as the one of `/v1/limits` that client commands accept.
pub(crate) const CLIENT_JSON_BYTES_MAX: usize = 1 << 20;

/// Entries that `klad import --into` sorts in memory and adds as tables together. Each entry needs about 100 bytes in
/// addition to its key and value, which is 400 MB for all.
pub(crate) const LOAD_ENTRIES: u64 = 4 << 20;

/// Bytes of the entries that `klad import --into` sorts in memory together.
pub(crate) const LOAD_BYTES: u64 = 256 << 20;
