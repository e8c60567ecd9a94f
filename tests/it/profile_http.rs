//! `/debug/pprof`: Go's tools and a browser can read klad's profiles, and taking them does not disturb requests.

use klad_profile::{Name, Profile, collapsed, pprof};

use super::support::tools::{browse, go, top};
use super::support::{Client, Server, ServerBuilder, wait_until};

/// A kind of profile, with a function of klad and one of RocksDB that it contains under [`load`].
struct Expected {
    path: &'static str,
    ours: &'static str,
    theirs: &'static str,
}

const KINDS: &[Expected] = &[
    Expected { path: "/debug/pprof/heap", ours: "klad_", theirs: "rocksdb::" },
    Expected { path: "/debug/pprof/allocs", ours: "klad_", theirs: "rocksdb::" },
];

const ENGINE: &str = if cfg!(feature = "rocksdb") { "rocksdb" } else { "memory" };

fn server() -> Server {
    ServerBuilder::new(ENGINE).arg("--heap-sample", "4KiB").start()
}

fn load(server: &Server) {
    let mut client = server.client();
    for number in 0..2_000 {
        let target = format!("/v0/entity?durability=async&id={number}");
        assert_eq!(client.put(&target, &[7; 4 << 10]).status, 201);
        assert_eq!(client.get(&target).status, 200);
    }
}

fn code(answer: &super::support::Answer) -> String {
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["status"].as_u64(), Some(u64::from(answer.status)));
    document["code"].as_str().unwrap().to_owned()
}

/// Returns what is missing in Go's output for a profile.
fn wrong_with_top(profile: &[u8], expected: &Expected) -> Option<String> {
    let said = match top(profile) {
        Ok(said) => said,
        Err(why) => return Some(format!("go does not read it: {why}")),
    };
    let missing = |name: &&str| !said.contains(name);
    let wanted = if cfg!(feature = "rocksdb") { vec![expected.ours, expected.theirs] } else { vec![expected.ours] };
    wanted.into_iter().find(missing).map(|name| format!("no {name} in {said}"))
}

#[test]
fn go_reads_every_kind_and_finds_functions_of_klad_and_of_rocksdb() {
    let server = server();
    load(&server);
    for kind in KINDS {
        let answer = server.admin(kind.path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/octet-stream")));
        let name = kind.path.rsplit('/').next().unwrap();
        let expected = format!("attachment; filename=\"{name}\"");
        assert_eq!(answer.header("content-disposition"), Some(expected.as_str()));
        assert_eq!(wrong_with_top(&answer.body, kind), None, "{}", kind.path);
        let decoded = pprof::decode(&answer.body).unwrap();
        for fact in ["events", "sampling rate", "not sampled", "version"] {
            assert!(decoded.facts.iter().any(|(name, _)| name == fact), "{fact} is missing: {:?}", decoded.facts);
        }
    }
}

/// Sends more HEAD requests than profiles of a kind can be taken at once. Returns their statuses and types.
fn heads(server: &Server, target: &str) -> Vec<(u16, String)> {
    let ask = |client: &mut Client| {
        client.send("HEAD", target, &[], None).unwrap();
        let (status, headers) = client.head().unwrap();
        let kind = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
        (status, kind.unwrap_or_default())
    };
    let mut client = Client::connect(server.admin);
    // On one connection: if an answer had a body, the next one could not be read.
    (0..8).map(|_| ask(&mut client)).collect()
}

#[test]
fn head_takes_no_profile() {
    let server = server();
    for kind in ["profile", "heap", "allocs", "mutex", "block", "threads"] {
        let seconds = if kind == "threads" { "" } else { "seconds=300&" };
        let target = format!("/debug/pprof/{kind}?{seconds}format=pprof");
        let expected = (200, "application/octet-stream".to_owned());
        assert_eq!(heads(&server, &target), vec![expected; 8], "{kind}");
    }
    assert_eq!(heads(&server, "/debug/pprof/heap?seconds=x")[0].0, 400);
}

#[test]
fn twin_a_profile_without_names_is_noticed() {
    let mut profile = pprof::decode(&server().admin("/debug/pprof/heap").body).unwrap();
    for (number, sample) in profile.samples.iter_mut().enumerate() {
        sample.frames = vec![Name::from(format!("f{number}"))];
    }
    assert!(wrong_with_top(&pprof::encode(&profile), &KINDS[0]).unwrap().contains("no klad_"));
    assert!(wrong_with_top(b"no profile", &KINDS[0]).unwrap().contains("go does not read it"));
}

#[test]
fn a_profile_written_by_go_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let program = "package main\nimport (\"os\"; \"runtime\"; \"runtime/pprof\")\nvar kept [][]byte\n\
                   //go:noinline\nfunc plantedKeep() { for i := 0; i < 64; i++ { kept = append(kept, make([]byte, 1<<20)) } }\n\
                   func main() { plantedKeep(); runtime.GC(); pprof.WriteHeapProfile(os.Stdout) }\n";
    std::fs::write(directory.path().join("main.go"), program).unwrap();
    go(&["build", "-o", "program", "main.go"], directory.path()).unwrap();
    let written = std::process::Command::new(directory.path().join("program")).output().unwrap().stdout;
    let decoded = pprof::decode(&written).unwrap();
    let kinds: Vec<&str> = decoded.values.iter().map(|value| value.kind.as_str()).collect();
    assert_eq!(kinds, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
    let has = |sample: &&klad_profile::Sample<Name>| sample.frames.iter().any(|name| name.contains("plantedKeep"));
    let bytes: i64 = decoded.samples.iter().filter(has).map(|sample| sample.values[3]).sum();
    assert!(bytes >= 50 << 20, "{bytes}");
}

#[test]
fn every_format_says_how_the_profile_was_taken() {
    let server = server();
    load(&server);
    for kind in KINDS {
        for query in ["", "seconds=0.2&"] {
            let text = server.admin(&format!("{}?{query}format=collapsed", kind.path));
            assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
            let read: Profile<Name> = collapsed::read(&text.text()).unwrap();
            assert!(read.facts.iter().any(|(name, _)| name == "sampling rate"), "{:?}", read.facts);
            assert_eq!(read.facts.iter().any(|(name, _)| name == "duration"), !query.is_empty());
            assert_eq!(read.title.contains("difference"), !query.is_empty());
            let page = server.admin(&format!("{}?{query}format=flamegraph", kind.path));
            assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
            assert!(page.text().contains("<dt>sampling rate</dt>"));
        }
    }
    assert!(server.admin("/debug/pprof/heap?debug=1").text().starts_with("# title: Memory in use\n"));
    let threads = server.admin("/debug/pprof/threads").text();
    assert!(threads.contains(" klad-admin (") && threads.contains(" threads\n"), "{threads}");
    let command_line = server.admin("/debug/pprof/cmdline").text();
    assert!(command_line.contains("\0serve\0"), "{command_line}");
}

#[test]
fn without_sampling_only_a_window_sees_allocations_and_the_picture_says_so() {
    let server = ServerBuilder::new(ENGINE).arg("--heap-sample", "0").start();
    load(&server);
    let page = server.admin("/debug/pprof/heap?format=flamegraph").text();
    assert!(page.contains("No samples were recorded.") && page.contains("--heap-sample is 0"), "{page}");
    let mut seen = String::new();
    wait_until("a window sees allocations", || {
        std::thread::scope(|scope| {
            let loaded = scope.spawn(|| load(&server));
            seen = server.admin("/debug/pprof/allocs?seconds=1&format=collapsed").text();
            loaded.join().unwrap();
        });
        seen.contains("klad_")
    });
}

#[test]
fn invalid_parameters_are_rejected() {
    let server = server();
    let bad =
        ["profile?seconds=0", "profile?hz=1001", "heap?hz=99", "mutex?threshold=2s", "heap?format=svg", "block?x1=1"];
    for target in bad {
        let answer = server.admin(&format!("/debug/pprof/{target}"));
        assert_eq!((answer.status, code(&answer).as_str()), (400, "bad-parameter"), "{target}");
    }
    assert_eq!(server.admin("/debug/pprof/nothing").status, 404);
    assert_eq!(server.admin("/debug/pprofx").status, 404);
    let refused = server.ask_admin("POST", "/debug/pprof/heap");
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")));
    assert!(server.admin("/debug/pprof").text().contains("/debug/pprof/allocs"));
}

/// Requests a profile and does not wait for its end.
fn begin(server: &Server) -> Client {
    let mut client = Client::connect(server.admin);
    client.send("GET", "/debug/pprof/heap?seconds=300", &[], None).unwrap();
    client
}

#[test]
fn profiles_at_once_are_limited_others_get_409_and_a_disconnect_frees_a_place() {
    let server = server();
    let mut open: Vec<Client> = (0..4).map(|_| begin(&server)).collect();
    let short = || server.admin("/debug/pprof/heap?seconds=0.001");
    wait_until("there is no place", || short().status == 409);
    let refused = short();
    assert_eq!(code(&refused), "profile-busy");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.admin("/debug/pprof/allocs").status, 200, "another kind");
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.admin(path).status, 200, "{path}");
    }
    drop(open.pop());
    wait_until("its place is free", || short().status == 200);
    // A stop does not wait for the other profiles, which take five minutes.
    assert_eq!(server.stop().code(), Some(0));
}

/// Returns a page that shows `page` in a frame 390 pixels wide, and writes down what is visible there.
fn on_a_phone(page: &str) -> String {
    let listening = "<script>window.onerror = function (what) { parent.errors.push(what); };</script><style>";
    let quoted = serde_json::to_string(&page.replacen("<style>", listening, 1)).unwrap().replace("</", "<\\/");
    format!(
        "<!DOCTYPE html><meta charset=utf-8><body><iframe id=f width=390 height=800></iframe><pre id=result></pre><script>\n\
         var f = document.getElementById('f'), errors = [];\n\
         f.onload = function () {{ setTimeout(function () {{\n\
           var d = f.contentDocument, w = f.contentWindow, style = w.getComputedStyle(d.body);\n\
           var picture = d.querySelector('.picture');\n\
           d.getElementById('term').value = 'klad_'; d.querySelector('form button').click();\n\
           document.getElementById('result').textContent = 'fits ' + (d.documentElement.scrollWidth <= d.documentElement.clientWidth) + ' picture ' +\n\
             (picture.scrollWidth > picture.clientWidth) + ' background ' + style.backgroundColor + ' found ' +\n\
             d.getElementById('found').textContent + ' errors ' + errors.length + errors.join();\n\
         }}, 500); }};\n\
         f.srcdoc = {quoted};\n</script>"
    )
}

/// Returns what [`on_a_phone`] has written.
fn seen_on_a_phone(page: &str, dark: bool) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("phone.html");
    std::fs::write(&path, on_a_phone(page)).unwrap();
    let shown = browse(&format!("file://{}", path.display()), dark);
    let result = shown.split("<pre id=\"result\">").nth(1).unwrap();
    result.split("</pre>").next().unwrap().to_owned()
}

/// Returns what is wrong with a page in a browser after a search.
fn wrong_with_page(page: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    std::fs::write(&path, page).unwrap();
    let shown = browse(&format!("file://{}?s=klad_", path.display()), false);
    if !shown.contains("<title>klad_") && !shown.contains(">klad_") {
        return Some("no frame is named".to_owned());
    }
    // The marks of inferno's search.
    if !shown.contains("fill=\"rgb(230,0,230)\"") {
        return Some("nothing is marked".to_owned());
    }
    // In the picture: the script contains the word too.
    let matched = shown.split("<text id=\"matched\"").nth(1).and_then(|text| text.split("</text>").next());
    let says = matched.is_some_and(|text| text.contains(">Matched: ") && text.ends_with('%'));
    (!says).then(|| format!("nothing says how much it is: {matched:?}"))
}

#[test]
fn a_browser_shows_names_searches_and_fits_a_phone_in_light_and_dark() {
    let server = server();
    load(&server);
    let page = server.admin("/debug/pprof/allocs?format=flamegraph").text();
    assert_eq!(wrong_with_page(&page), None);
    let light = seen_on_a_phone(&page, false);
    assert!(light.starts_with("fits true picture true background rgb(255, 255, 255) found Matched: "), "{light}");
    let dark = seen_on_a_phone(&page, true);
    assert!(dark.starts_with("fits true picture true background rgb(23, 23, 26) found Matched: "), "{dark}");
    assert!(light.ends_with(" errors 0") && dark.ends_with(" errors 0"));
}

#[test]
fn twin_a_page_without_its_script_or_names_is_noticed() {
    let server = server();
    load(&server);
    let page = server.admin("/debug/pprof/allocs?format=flamegraph").text();
    assert_eq!(wrong_with_page(&page.replace("onload=\"init(evt)\"", "")), Some("nothing is marked".to_owned()));
    assert_eq!(wrong_with_page(&page.replace("klad_", "else::")), Some("no frame is named".to_owned()));
    let wordless = wrong_with_page(&page.replace("\"Matched: \"", "\"\"")).unwrap_or_default();
    assert!(wordless.starts_with("nothing says how much it is"), "{wordless}");
    let broken = page.replace("\"use strict\";\n// The search", "nothing_here();\n// The search");
    assert!(!seen_on_a_phone(&broken, false).ends_with(" errors 0"));
    let wide = page.replace("<h1>", "<h1 style=\"width:800px\">");
    assert!(seen_on_a_phone(&wide, false).starts_with("fits false "));
}
