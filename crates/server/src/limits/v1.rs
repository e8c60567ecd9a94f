//! The limits of `/v1`. Called by `http::v1`, and by the program for the defaults of options.

use std::time::Duration;

use super::KEY_BYTES_CEILING;

/// The times to live that a client may ask for. klad answers other values with 400. The clock of a request has a
/// precision of one millisecond.
pub const TTL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_hours(24 * 365 * 100 + 24 * 25);

/// Bytes of a stored content type, and of a content encoding. klad answers a longer one with 400. Types with parameters
/// have below 100 bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 256;

/// Bytes of the user metadata of one value, names and values together. klad answers more with 400. S3 takes 2 KiB.
pub const METADATA_BYTES_MAX: usize = 4 << 10;

/// The number of entries of user metadata. klad answers more with 400.
pub const METADATA_ENTRIES_MAX: usize = 32;

/// Bytes of the name of an entry of user metadata, without `Klad-Meta-`. klad answers a longer one with 400.
pub const METADATA_NAME_BYTES_MAX: usize = 255;
// A cursor stores the length of a key in two bytes and that of a delimiter in one (`http/v1/scan/cursor.rs`). It has
// two keys in base64, which take less space than one key with every byte percent-encoded.
const _: () = assert!(KEY_BYTES_CEILING < u16::MAX as u64 && SCAN_DELIMITER_BYTES_MAX <= u8::MAX as usize);

// The lengths that are stored beside names and values (`http/v1/metadata.rs`).
const _: () = assert!(METADATA_NAME_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(METADATA_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(CONTENT_TYPE_BYTES_MAX <= u16::MAX as usize);

/// Default of `--batch-items-max`: the number of items of one batch. klad answers more with 413. It is a quarter of
/// `OPERATIONS_MAX`, because each item takes one operation slot. A batch that needs nearly all slots finds them free
/// only while nothing else is in progress.
pub const BATCH_ITEMS_MAX: u64 = super::OPERATIONS_MAX / 4;

/// Default of `--batch-bytes-max`: bytes of the body of one batch. klad answers more with 413.
pub const BATCH_BYTES_MAX: u64 = 16 << 20;

/// Bytes of all values and their metadata that one batch reads; a quarter of the body budget if that is less. klad
/// answers an item that does not fit with 413. If the batch is atomic, klad rejects the whole batch with 413.
pub const BATCH_READ_BYTES_MAX: usize = 16 << 20;

/// What the body budget is charged for each item of a batch beyond the body, bytes: the change, its attributes, and
/// what storage holds until the batch is written. Without free budget klad answers 503.
pub const BATCH_ITEM_BYTES: usize = 384;

/// The most that one result of a batch takes in the answer without a value and metadata, bytes. The longest one has all
/// members, an `etag` of 20 digits and a `ttl` of 100 years.
pub const BATCH_RESULT_BYTES_MAX: usize = 160;

/// klad reads or writes at most this many items of a batch before the worker's other requests run. Measured: 512 items
/// of 100 bytes take 0.13 ms from JSON, and 0.1 ms from CBOR.
pub const BATCH_SLICE_ITEMS: usize = 512;

/// When klad has read or written this many bytes of a batch, the worker's other requests run. klad never divides an
/// item. With values of 100 bytes, klad reads about 500 MB of JSON a second, and 256 KiB in half a millisecond.
pub const BATCH_SLICE_BYTES: usize = 256 << 10;

/// The maximum of entries of one JSON page of a scan. klad answers a larger `limit` with 400.
pub const SCAN_PAGE_ENTRIES_MAX: u64 = 10_000;

/// The maximum of entries of one JSON page of a scan without a `limit`.
pub const SCAN_PAGE_ENTRIES: u64 = 1_000;

/// The maximum of bytes of keys, values and metadata of one JSON page of a scan. A page that is full ends with a
/// cursor. A larger entry is a page by itself.
pub const SCAN_PAGE_BYTES_MAX: u64 = 1 << 20;

/// The largest `limit` of a stream or a count. klad answers a larger one with 400. It only catches mistakes.
pub const SCAN_LIMIT_MAX: u64 = 1_000_000_000;

/// Bytes of the `delimiter` of a scan. klad answers a longer one with 400. A cursor carries it.
pub const SCAN_DELIMITER_BYTES_MAX: usize = 16;

/// The maximum of entries that one step of a `/v1` scan returns. Each step passes from the worker to a storage thread
/// and back. On one core, a stream beside point reads made their p99 1.4 times as long with 128, 2 to 4 times with 256,
/// and 5 times with 1,024, because a step keeps the core so long. The stream had 1.8, 2.4 and 3.5 million entries a
/// second. A stream holds the entries of at most two steps.
pub const SCAN_STREAM_STEP_ENTRIES_MAX: usize = 128;

/// The maximum of entries of a step of a scan with a delimiter. The scan continues behind a common prefix, so most
/// entries of a longer step would be read for nothing.
pub const SCAN_GROUP_STEP_ENTRIES_MAX: usize = 64;

/// Default of `--scan-time-max`: how long one scan may take. Then it ends with a cursor. A scan holds a snapshot, for
/// which the engine keeps overwritten values.
pub const SCAN_TIME_MAX: Duration = Duration::from_mins(1);
