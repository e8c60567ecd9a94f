//! Limits of the client commands. Each has its unit, its reason, and what the command does when it is reached.

use std::time::Duration;

use klad_server::limits::{KEY_BYTES_CEILING, VALUE_BYTES_CEILING, VALUE_BYTES_MAX};

/// How long client commands such as `klad get` try one address of a server before they try the next. The kernel makes
/// three attempts in this time.
pub(crate) const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Client commands such as `klad get` fail if no byte is sent or received for this long. It is longer than
/// [`HEAD_TIMEOUT`](klad_server::limits::HEAD_TIMEOUT) and any wait in a queue, so that the server's answer comes
/// first.
pub(crate) const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long `klad put` waits for `100 Continue` before it sends the value without it. Some proxies do not forward it.
pub(crate) const CLIENT_EXPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of a value of unknown length that `klad put` reads before it connects to the server. The source, a person or
/// a program, may be slow, and a server does not wait long. It is the default `--value-max`. `klad put` sends anything
/// beyond it while it reads.
pub(crate) const CLIENT_READ_AHEAD_BYTES: u64 = VALUE_BYTES_MAX;

/// Bytes of the head of an answer that client commands accept. A longer one is an error. klad's own heads are shorter
/// than 300.
pub(crate) const CLIENT_HEAD_BYTES_MAX: usize = 64 << 10;

/// Bytes of an error answer that client commands read to find the reason. klad's own are shorter than 1,000. Client
/// commands ignore a reason that is cut off.
pub(crate) const CLIENT_PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Bytes of a profile that `klad profile` accepts from a server or a file, before decompression. It holds the profile
/// in memory as a whole; a larger one is an error. Profiles of busy servers are smaller than 1 MiB.
pub(crate) const CLIENT_PROFILE_BYTES_MAX: usize = 64 << 20;

/// Bytes of an entry that `klad scan` accepts; a longer one is an error. It holds an entry in memory until it is
/// complete. It is the largest value, line feed and key that any server can be configured for.
pub(crate) const CLIENT_ENTRY_BYTES_MAX: u64 = VALUE_BYTES_CEILING + 1 + KEY_BYTES_CEILING;
