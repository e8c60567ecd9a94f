//! Command line of the client commands that read or write many entries: `klad scan`, `batch`, `watch`, `export` and
//! `import`.

#![expect(clippy::doc_markdown, reason = "the command line prints these comments as help, without markup")]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::client::args::{Durability, KeyForm, ServerArgs};
use crate::client::items::Format;
use crate::disk;
use klad_bench::keys::KeyFormat;
use klad_bench::units::{self, SizeRange};
use klad_storage::Compression;

/// Options that have no meaning for a data directory.
const OF_SERVER: [&str; 4] = ["url", "token_file", "ca", "timeout"];

/// Options that select entries.
#[derive(Args, Debug)]
pub struct RangeArgs {
    /// First key [default: the first key of the store]. An empty key means the default.
    #[arg(value_name = "START")]
    pub start: Option<OsString>,
    /// Key at which the range ends; this key is not part of it [default: after the last key].
    #[arg(value_name = "END")]
    pub end: Option<OsString>,
    /// Select only keys that begin with these bytes.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<OsString>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
}

/// Options of `klad scan`.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct ScanArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub range: RangeArgs,
    /// Print only keys.
    #[arg(long = "keys")]
    pub keys_only: bool,
    /// Stop after this number of entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// List the keys in descending order.
    #[arg(long)]
    pub reverse: bool,
    /// Cut each key behind the first TEXT after --prefix, such as a slash, and print equal results once.
    ///
    /// With a slash, the command lists keys as directories. --key-hex, --key-base64 and --percent do not apply to TEXT.
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<OsString>,
    /// Print only the number of entries.
    #[arg(long, conflicts_with_all = ["keys_only", "limit", "reverse", "delimiter"])]
    pub count: bool,
    /// Print one JSON object per line for each entry. It has "key" and "value" if the bytes are UTF-8, otherwise
    /// "key64" and "value64" with the bytes in base64. The object also has etag, content_type, content_encoding, meta,
    /// ttl and modified_ms.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad batch`.
#[derive(Args, Debug)]
pub struct BatchArgs {
    /// File with the items. If it is missing or `-`, klad reads the items from the standard input.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Do all items or none, in one commit. More items than the server takes in one request are an error.
    #[arg(long)]
    pub atomic: bool,
    /// Durability that the writes must have before the server answers [default: the server's setting].
    #[arg(long, value_enum, value_name = "WORD")]
    pub durability: Option<Durability>,
    /// Print no results.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Print only changes of keys that begin with these bytes.
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Begin with the changes after this version, if the server still has them [default: the changes from now on].
    #[arg(long, value_name = "VERSION")]
    pub from: Option<u64>,
    /// Print the stored values too.
    #[arg(long)]
    pub values: bool,
    /// Stop after this number of changes.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print each change as the JSON object that the server sends.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub keys: KeyForm,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub range: RangeArgs,
    /// Export this data directory, which no process serves, instead of asking a server.
    ///
    /// klad opens the directory as klad serve does. If it is a checkpoint, it thereby becomes an ordinary data
    /// directory.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, conflicts_with_all = OF_SERVER)]
    pub data: Option<PathBuf>,
    /// File to write. Without --resume, it must not exist [default: the standard output].
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Continue an interrupted export after the last complete entry in the file of --output.
    ///
    /// Range and format must be the same as before. If the file does not exist, the export starts at the beginning.
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// Form of the entries: ndjson (JSON lines) or cbor (a CBOR sequence, RFC 8742).
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Ndjson)]
    pub format: Format,
    /// Print nothing on success.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

/// Options of `klad import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Import into this data directory, which no process serves, instead of a server.
    ///
    /// klad creates the directory if it does not exist or is empty.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, conflicts_with_all = OF_SERVER)]
    pub data: Option<PathBuf>,
    /// Load the entries as whole tables into this data directory, which no process serves.
    ///
    /// --into costs less time and fewer disk writes than --data. But only the engine rocksdb supports it, and change
    /// feeds cannot continue from before the load. klad creates the directory if it does not exist or is empty.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    #[arg(conflicts_with_all = OF_SERVER, conflicts_with_all = ["data", "durability", "engine"])]
    pub into: Option<PathBuf>,
    /// Compression of the tables that --into writes. Use the same value as for klad serve [default: lz4].
    #[arg(long, value_enum, value_name = "NAME", requires = "into")]
    pub compression: Option<Compression>,
    /// Load the N entries of `klad bench --fill N` instead of an input.
    #[arg(long, value_name = "N", requires = "into", conflicts_with_all = ["input", "format", "partial"])]
    #[arg(value_parser = units::count)]
    pub generate: Option<u64>,
    /// Form of a generated key: {} stands for the number of the key, {:07} for the number with leading zeros.
    #[arg(long, value_name = "FORMAT", requires = "generate", default_value = "key{}")]
    pub key_format: KeyFormat,
    /// Form of a generated value: {} stands for the number of its key [default: random bytes].
    #[arg(long, value_name = "FORMAT", requires = "generate", conflicts_with = "value_size")]
    pub value_format: Option<KeyFormat>,
    /// Size of generated values, fixed (100B) or evenly distributed over a range (100B..4KiB).
    #[arg(long, value_name = "SIZE", requires = "generate", default_value = "100B")]
    pub value_size: SizeRange,
    /// Engine of a directory that --data creates [default: the default engine of klad serve].
    #[arg(long, value_name = "NAME", requires = "data", value_parser = engines())]
    pub engine: Option<String>,
    /// File to read [default: the standard input].
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub input: Option<PathBuf>,
    /// Form of the entries, ndjson or cbor [default: klad detects it from the first byte of the input].
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// File in which klad records how far the import has come, and from which the next import continues.
    ///
    /// A complete import deletes the file.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub resume_file: Option<PathBuf>,
    /// Store only entries whose keys do not exist.
    #[arg(long)]
    pub if_absent: bool,
    /// Accept an input that does not end as an export does, such as a list of entries that another program wrote.
    #[arg(long)]
    pub partial: bool,
    /// Durability that each write must have before the import continues [default: the server's setting; with --data:
    /// sync].
    #[arg(long, value_enum, value_name = "WORD")]
    pub durability: Option<Durability>,
    /// Print nothing on success.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would become the help of the group")]
    pub server: ServerArgs,
}

fn engines() -> clap::builder::PossibleValuesParser {
    disk::ENGINES.iter().copied().into()
}
