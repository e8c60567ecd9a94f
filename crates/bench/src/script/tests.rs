use crate::script::*;

fn setting() -> Setting {
    Setting {
        host: "127.0.0.1".to_owned(),
        port: Some("8080".to_owned()),
        path: "/a?b=c".to_owned(),
        headers: vec![("X-Own".to_owned(), "1".to_owned())],
        arguments: vec!["http://127.0.0.1:8080/a?b=c".to_owned(), "one".to_owned()],
        address: SocketAddr::from(([127, 0, 0, 1], 8080)),
        quiet: false,
    }
}

fn load(source: &str, threads: usize) -> anyhow::Result<(Script, Vec<Box<dyn Author>>)> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), source).expect("written");
    Script::load(file.path(), &setting(), threads)
}

fn next(author: &mut Box<dyn Author>) -> String {
    let mut bytes = Vec::new();
    author.next(&mut bytes).expect("it makes one");
    String::from_utf8(bytes).expect("text")
}

/// Returns the request line, the header lines in alphabetical order, and the body.
fn sorted(request: &str) -> Vec<String> {
    let (head, body) = request.split_once("\r\n\r\n").expect("a whole head");
    let mut lines: Vec<_> = head.split("\r\n").map(str::to_owned).collect();
    lines[1..].sort();
    lines.push(body.to_owned());
    lines
}

#[test]
fn a_script_without_functions_sends_its_settings() {
    let (script, mut authors) =
        load("wrk.method = 'PUT'; wrk.body = 'hello'; wrk.headers['A'] = 'b'", 2).expect("it loads");
    assert_eq!((script.pipeline, authors.len()), (1, 2));
    let expected = ["PUT /a?b=c HTTP/1.1", "A: b", "Content-Length: 5", "Host: 127.0.0.1:8080", "X-Own: 1", "hello"];
    for author in &mut authors {
        assert_eq!(sorted(&next(author)), expected);
        assert_eq!(sorted(&next(author)), expected);
    }
}

#[test]
fn counters_repeat_in_each_thread_and_the_first_thread_has_one_call_more() {
    let source = "n = 0; function request() n = n + 1; return wrk.format('GET', '/' .. n) end";
    let (_script, mut authors) = load(source, 2).expect("it loads");
    let paths: Vec<_> = authors.iter_mut().map(|author| sorted(&next(author))[0].clone()).collect();
    assert_eq!(paths, ["GET /2 HTTP/1.1", "GET /1 HTTP/1.1"]);
}

#[test]
fn setup_can_set_globals_of_threads_and_init_gets_the_arguments() {
    let source = "
        local threads = {}
        function setup(thread) thread:set('id', #threads); thread:set('t', { a = { 1, 'x' } }); table.insert(threads, thread) end
        function init(args) path = '/' .. id .. '/' .. args[0]:sub(1, 4) .. '/' .. args[1] .. t.a[2] end
        function request() return wrk.format(nil, path) end
        function done(summary, latency) for _, t in ipairs(threads) do assert(t:get('path'):sub(1, 2) == '/' .. t:get('id')) end
            told = summary.requests .. ' ' .. latency.max end";
    let (script, mut authors) = load(source, 2).expect("it loads");
    assert!(next(&mut authors[1]).starts_with("GET /1/http/onex HTTP/1.1\r\n"));
    let mut response = crate::recorder::histogram();
    response.record(7_000).expect("in range");
    let report = script_report::Report::of(&crate::result::sample(), &response);
    script.done(&report).expect("it is content");
    assert_eq!(script.lua.globals().get::<String>("told").expect("set"), "100 7");
}

#[test]
fn response_sees_answers_and_can_stop_its_thread() {
    let source = "seen = 0
        function response(status, headers, body)
            if status == 201 and headers['Etag'] == '\"5\"' and body == 'made' then seen = seen + 1 end
            if seen == 2 then wrk.thread:stop() end
        end";
    let (script, mut authors) = load(source, 1).expect("it loads");
    let author = &mut authors[0];
    assert!(author.wants_answers());
    let head = b"HTTP/1.1 201 Created\r\nEtag: \"5\"\r\n\r\n";
    author.answered(201, head, b"made").expect("no error");
    assert!(!author.has_stopped());
    author.answered(201, head, b"made").expect("no error");
    assert!(author.has_stopped());
    assert_eq!(script.threads[0].lua.globals().get::<u64>("seen").expect("set"), 2);
}

#[test]
fn functions_may_be_replaced_while_the_script_runs() {
    let source = "function request() return wrk.format('POST', '/login') end
        function response() request = function() return wrk.format('GET', '/then') end end";
    let (_script, mut authors) = load(source, 1).expect("it loads");
    assert!(next(&mut authors[0]).starts_with("POST /login "));
    authors[0].answered(200, b"HTTP/1.1 200 OK\r\n\r\n", b"").expect("no error");
    assert!(next(&mut authors[0]).starts_with("GET /then "));
}

#[test]
fn a_delay_of_nil_is_no_delay() {
    let (_script, mut authors) = load("function delay() end", 1).expect("it loads");
    assert_eq!(authors[0].delay(), Ok(Some(0)));
}

#[test]
fn delays_are_whole_milliseconds_and_setup_can_choose_addresses() {
    let source = "function setup(thread) thread.addr = wrk.lookup('127.0.0.2', '81')[1] end
        function delay() return 2.9 end";
    let (_script, mut authors) = load(source, 1).expect("it loads");
    assert_eq!(authors[0].delay(), Ok(Some(2_000_000)));
    assert_eq!(authors[0].address().to_string(), "127.0.0.2:81");
    let (_script, mut authors) = load("", 1).expect("it loads");
    assert_eq!(authors[0].delay(), Ok(None));
    assert_eq!(authors[0].address(), setting().address);
}

#[test]
fn pipelines_are_counted() {
    let source = "function init() local r = {}; for i = 1, 3 do r[i] = wrk.format('POST', '/' .. i, nil, 'xy') end
        all = table.concat(r) .. wrk.format('HEAD', '/4', {}) end
        function request() return all end";
    let (script, mut authors) = load(source, 1).expect("it loads");
    assert_eq!(script.pipeline, 4);
    let mut bytes = Vec::new();
    assert_eq!(authors[0].next(&mut bytes), Ok(Some(Pipeline { requests: 4, bodiless: 0b1000 })));
    assert_eq!(requests_in(b"GET / HTTP/1.1\r\n"), None);
    assert_eq!(requests_in(b""), None);
}

#[test]
fn errors_are_reported_with_their_position() {
    let fails = |source: &str| format!("{:#}", load(source, 1).expect_err("it fails"));
    assert!(fails("x = = 1").contains(":1: unexpected symbol"), "{}", fails("x = = 1"));
    assert!(fails("function request() return 7 .. nil end").contains("request() failed"));
    assert!(fails("function request() end").contains("returned a nil"));
    assert!(fails("function request() return 'GET /\\r\\n' end").contains("is not an HTTP request"));
    assert!(fails("function setup(t) t:set('f', print) end").contains("a function cannot pass"));
    assert!(
        fails("local t = {}; t.t = t; function setup(x) x:set('t', t) end").contains("a table that contains itself")
    );
    assert!(
        format!("{:#}", Script::load(Path::new("/nowhere.lua"), &setting(), 1).expect_err("none")).contains("nowhere")
    );
}

#[test]
fn a_body_and_a_request_may_be_numbers() {
    let of_format = "function request() return wrk.format('PUT', '/', nil, 1024) end";
    let of_wrk = "wrk.method = 'PUT'; wrk.path = '/'; wrk.body = 1024";
    for source in [of_format, of_wrk] {
        let (_script, mut authors) = load(source, 1).expect("it loads");
        let lines = sorted(&next(&mut authors[0]));
        assert_eq!((&*lines[1], &*lines[lines.len() - 1]), ("Content-Length: 4", "1024"), "{source}");
    }
    let (_script, mut authors) =
        load("n = 0; function request() n = n + 1; return n == 1 and wrk.format() or n end", 1).expect("it loads");
    assert_eq!(next(&mut authors[0]), "2");
}

#[test]
fn a_stopped_thread_need_not_make_a_request() {
    let source = "n = 0; function request() n = n + 1; if n == 3 then wrk.thread:stop() return nil end
        return wrk.format('GET', '/' .. n) end";
    let (_script, mut authors) = load(source, 1).expect("it loads");
    assert!(next(&mut authors[0]).starts_with("GET /2 "));
    assert_eq!(authors[0].next(&mut Vec::new()), Ok(None));
    let (_script, mut authors) = load("function request() wrk.thread:stop() end", 1).expect("it loads");
    assert_eq!(authors[0].next(&mut Vec::new()), Ok(None));
    assert!(authors[0].has_stopped());
}

#[test]
fn requests_may_have_many_headers() {
    let source =
        "for n = 1, 200 do wrk.headers['X-' .. n] = n end; function request() return wrk.format('HEAD', '/') end";
    let (_script, mut authors) = load(source, 1).expect("it loads");
    let mut bytes = Vec::new();
    assert_eq!(authors[0].next(&mut bytes), Ok(Some(Pipeline { requests: 1, bodiless: 1 })));
}

#[test]
fn an_unknown_field_of_a_thread_is_its_name() {
    load("function setup(thread) assert(thread.id == 'id') end", 1).expect("it loads");
}

#[test]
fn common_libraries_are_available() {
    load("assert(bit.bor(1, 2) == 3); local ffi = require 'ffi'; assert(ffi.sizeof('int') == 4); require 'wrk'", 1)
        .expect("they are");
}
