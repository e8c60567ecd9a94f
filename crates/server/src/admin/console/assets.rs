//! The files of the console's page. They are compiled into the program, so the console needs no network and no
//! directory.
//!
//! `console` calls this.

use std::sync::{LazyLock, OnceLock};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Request, Response, StatusCode};

use crate::admin::page::Page;

/// One file of the console.
struct Asset {
    /// The path below `/console/`. The page itself, `index.html`, is also at `/console` and `/console/`.
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// The compressed file, made when a client first asks for it.
    gzipped: OnceLock<Bytes>,
}

fn asset(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Asset {
    Asset { name, content_type, bytes, gzipped: OnceLock::new() }
}

macro_rules! file {
    ($name:literal, $content_type:expr) => {
        asset($name, $content_type, include_bytes!(concat!("assets/", $name)))
    };
    (vendor $name:literal, $content_type:expr) => {
        asset($name, $content_type, include_bytes!(concat!("assets/vendor/", $name)))
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const PICTURE: &str = "image/svg+xml";

/// All files of the console.
static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    vec![
        file!("index.html", HTML),
        file!("api.js", SCRIPT),
        file!("app.js", SCRIPT),
        file!("bytes.js", SCRIPT),
        file!("care.js", SCRIPT),
        file!("chart.js", SCRIPT),
        file!("charts.json", JSON),
        file!("cluster.js", SCRIPT),
        file!("console.css", STYLE),
        file!("data.js", SCRIPT),
        file!("editor.js", SCRIPT),
        file!("figures.js", SCRIPT),
        file!("flame.js", SCRIPT),
        file!("format.js", SCRIPT),
        file!("html.js", SCRIPT),
        file!("icon.svg", PICTURE),
        file!("now.js", SCRIPT),
        file!("store.js", SCRIPT),
        file!("stream.js", SCRIPT),
        file!("value.js", SCRIPT),
        file!("verdict.js", SCRIPT),
        file!("why.js", SCRIPT),
        file!(vendor "htm.mjs", SCRIPT),
        file!(vendor "hooks.mjs", SCRIPT),
        file!(vendor "preact.mjs", SCRIPT),
        asset("uPlot.iife.min.js", SCRIPT, klad_page::UPLOT.as_bytes()),
        asset("colours.css", STYLE, klad_page::COLOURS.as_bytes()),
        asset("uPlot.min.css", STYLE, klad_page::UPLOT_STYLE.as_bytes()),
    ]
});

/// The headers of every file. They let the page load only these files and talk only to this server. They let no other
/// page show the console in a frame or access its window.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // The browser asks each time whether its copy is current, because klad may have been updated.
    (CACHE_CONTROL, "no-cache"),
];

/// The file that says which charts the console has, and which metrics each chart needs.
pub(super) const CHARTS: &str = include_str!("assets/charts.json");

/// Whether a file of the console is at `path`.
pub(in crate::admin) fn is_path(path: &str) -> bool {
    find(path).is_some()
}

/// Answers a request for a file. Returns `None` if there is no such file.
pub(super) fn answer(request: &Request<Incoming>) -> Option<Response<Page>> {
    let asset = find(request.uri().path())?;
    let etag = format!("\"{:08x}\"", crc32c::crc32c(asset.bytes));
    let has = |name: HeaderName, value: &str| {
        request.headers().get_all(name).iter().any(|header| header.to_str().is_ok_and(|text| text.contains(value)))
    };
    let mut answer = if has(IF_NONE_MATCH, &etag) {
        let mut answer = Response::new(Page::from(Bytes::new()));
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        answer
    } else if has(ACCEPT_ENCODING, "gzip") {
        let mut answer = Response::new(Page::from(asset.gzipped()));
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        answer
    } else {
        Response::new(Page::from(Bytes::from_static(asset.bytes)))
    };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(ETAG, HeaderValue::from_str(&etag).expect("hexadecimal digits"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(answer)
}

fn find(path: &str) -> Option<&'static Asset> {
    let name = match path.strip_prefix("/console")? {
        "" | "/" => "index.html",
        below => below.strip_prefix('/')?,
    };
    ASSETS.iter().find(|asset| asset.name == name)
}

impl Asset {
    fn gzipped(&self) -> Bytes {
        let gzipped = self.gzipped.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            let written = std::io::Write::write_all(&mut encoder, self.bytes);
            written.and_then(|()| encoder.finish()).expect("writing to memory does not fail").into()
        });
        gzipped.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::api_error::ApiError;

    /// The maximum of bytes of all files, compressed: what opening the console over a slow line costs.
    const GZIPPED_BYTES_MAX: usize = 150 << 10;

    #[test]
    fn every_file_is_served() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/console/assets");
        for path in [directory.to_owned(), format!("{directory}/vendor")] {
            for entry in std::fs::read_dir(path).expect("the sources") {
                let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
                let is_for_people = ["vendor", "README.md", "LICENSE-htm", "LICENSE-preact"].contains(&&*name);
                assert!(is_for_people || is_path(&format!("/console/{name}")), "{name} is missing in ASSETS");
            }
        }
    }

    /// The arms of a `match` in a function of `api_error.rs`: the variants, and the result.
    fn arms(function: &str) -> Vec<(Vec<&'static str>, &'static str)> {
        let source = include_str!("../../http/api_error.rs");
        let (_, body) = source.split_once(function).expect("the function");
        let parts: Vec<&str> = body.split("\n    }\n").next().expect("a body").split("=>").collect();
        let variants = |pattern: &'static str| {
            let names = pattern.split("Error::").skip(1);
            names.map(|name| name.split(|c: char| !c.is_alphanumeric()).next().expect("a part")).collect()
        };
        parts.windows(2).map(|pair| (variants(pair[0]), pair[1].trim_start())).collect()
    }

    /// The codes of 503 and 507 in `klad_refused_total`, except those of connections.
    fn refusals() -> BTreeSet<&'static str> {
        let is_refusal = |result: &str| {
            ["SERVICE_UNAVAILABLE", "INSUFFICIENT_STORAGE"]
                .iter()
                .any(|status| result.strip_prefix("StatusCode::").is_some_and(|found| found.starts_with(status)))
        };
        let statuses = arms("fn status(&self)").into_iter().filter(|(_, result)| is_refusal(result));
        let variants: Vec<&str> = statuses.flat_map(|(variants, _)| variants).collect();
        let codes = arms("fn code(&self)").into_iter();
        let codes = codes.filter(|(own, _)| own.iter().any(|variant| variants.contains(variant)));
        let codes = codes.filter_map(|(_, result)| result.strip_prefix('"')?.split('"').next());
        codes.filter(|code| ApiError::CODES.contains(code)).collect()
    }

    #[test]
    fn the_page_knows_all_reasons_of_rejections() {
        let source = include_str!("assets/verdict.js");
        let (_, list) = source.split_once("const REFUSALS = [").expect("the list");
        let list = list.split(']').next().expect("a part");
        let listed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, refusals());
    }

    #[test]
    fn all_files_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.gzipped().len()).sum();
        assert!(bytes <= GZIPPED_BYTES_MAX, "{bytes} bytes");
    }
}
