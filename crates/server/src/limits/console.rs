//! Limits of the console.

use std::time::Duration;

/// How often klad samples what the console draws.
pub const CONSOLE_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of samples that klad keeps: 15 minutes, so that a page shows what happened before it was opened. klad drops
/// the oldest sample.
pub const CONSOLE_SAMPLES: usize = 900;

/// The maximum of series that klad samples. klad leaves further ones out, and says so in its log and in the stream. The
/// console's charts use up to 555 of them with RocksDB. Only the nodes of a Cassandra cluster can add many, and without
/// RocksDB's series there is space for 23 nodes.
pub const CONSOLE_SERIES_MAX: usize = 576;

/// The memory that all samples may take, bytes.
pub const CONSOLE_BYTES_MAX: usize = 4 << 20;

/// The maximum of samples in one event. A client gets what it has missed in events of this length: 30 samples of 500
/// series are some 100 KB of JSON.
pub const CONSOLE_EVENT_SAMPLES_MAX: usize = 30;

/// The maximum of open streams of samples. klad answers one more with 503. Each holds an admin connection.
pub const CONSOLE_STREAMS_MAX: usize = 16;

/// The maximum of requests for data that the admin listener passes on at a time. klad answers one more with 503. Each
/// takes two descriptors; a browser opens at most six connections to a server.
pub const CONSOLE_DATA_REQUESTS_MAX: usize = 16;

const _: () = assert!(CONSOLE_SAMPLES * (CONSOLE_SERIES_MAX * size_of::<f64>() + 24) <= CONSOLE_BYTES_MAX);
