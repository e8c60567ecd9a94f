//! What the console says and does in its views: a sentence for each cause, explanations of charts, changes in the view
//! Care, and the nodes of a cluster.

use serde_json::{Value, json};

use super::console_page::{assert_well_drawn, open};
use super::support::webdriver::Browser;
use super::support::{Client, ServerBuilder, wait_until};

/// Names of series with their values at the beginning and at the end of ten seconds.
type Series = &'static [(&'static str, f64, f64)];

/// Figures, and the words of the sentence that they must give.
const CAUSES: &[(&str, Series)] = &[
    ("klad is not ready: the check log fails", &[("klad_ready", 0., 0.), ("klad_ready_check{check=\"log\"}", 0., 0.)]),
    ("klad takes no writes until it is started again", &[("klad_storage_writes_stopped", 1., 1.)]),
    ("Storage has not answered for 12", &[("klad_storage_observation_age_seconds", 2., 12.)]),
    (
        "The disk is full: 1 KiB",
        &[("klad_storage_disk_free_bytes", 1024., 1024.), ("klad_storage_disk_reserve_bytes", 2048., 2048.)],
    ),
    (
        "The disk is almost full",
        &[("klad_storage_disk_free_bytes", 4096., 4096.), ("klad_storage_disk_reserve_bytes", 2048., 2048.)],
    ),
    ("A flush or compaction has failed", &[("klad_rocksdb_background_errors_total", 0., 1.)]),
    ("RocksDB slows writes down", &[("klad_rocksdb_write_stall{state=\"delayed\"}", 1., 1.)]),
    ("RocksDB stops writes", &[("klad_rocksdb_write_stall_seconds_total{state=\"stopped\"}", 0., 5.)]),
    (
        "Writes wait for the disk: a sync takes 49",
        &[
            ("klad_wal_sync_seconds_bucket{le=\"0.025\"}", 0., 0.),
            ("klad_wal_sync_seconds_bucket{le=\"0.05\"}", 0., 100.),
            ("klad_http_request_duration_seconds_bucket{op=\"put\",le=\"0.1\"}", 0., 100.),
            ("klad_http_request_duration_seconds_sum{op=\"put\"}", 0., 10.),
            ("klad_http_request_phase_seconds_sum{op=\"put\",phase=\"sync\"}", 0., 6.),
        ],
    ),
    // Rejections that clients have caused are no reason of klad's.
    (
        "klad rejects 10 requests/s (50 %, mostly overloaded)",
        &[
            ("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"refused\"}", 0., 100.),
            ("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"ok\"}", 0., 100.),
            ("klad_refused_total{reason=\"overloaded\"}", 0., 100.),
            ("klad_refused_total{reason=\"precondition-failed\"}", 0., 500.),
            // These are rejected connections, not requests.
            ("klad_refused_total{reason=\"too-many-connections\"}", 0., 5000.),
        ],
    ),
    (
        "requests/s fail inside klad",
        &[("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"error\"}", 0., 10.)],
    ),
    ("wait longer than their clients allow", &[("klad_deadline_dropped_total", 0., 10.)]),
    (
        "The queue writes is standing: 900 of at most 1,024",
        &[
            ("klad_queue_oldest_seconds{queue=\"writes\"}", 0.3, 0.4),
            ("klad_queue_depth{queue=\"writes\"}", 900., 900.),
            ("klad_queue_limit{queue=\"writes\"}", 1024., 1024.),
        ],
    ),
    (
        "Reads wait for storage",
        &[
            ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"0.1\"}", 0., 100.),
            ("klad_http_request_duration_seconds_sum{op=\"get\"}", 0., 10.),
            ("klad_http_request_phase_seconds_sum{op=\"get\",phase=\"engine\"}", 0., 9.),
        ],
    ),
    // Of a time in the last bucket only the lower bound is known.
    (
        "a get takes > 60 s (p99)",
        &[
            ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"60\"}", 0., 10.),
            ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"+Inf\"}", 0., 100.),
            ("klad_http_request_duration_seconds_sum{op=\"get\"}", 0., 1e4),
            ("klad_http_request_phase_seconds_sum{op=\"get\",phase=\"engine\"}", 0., 9e3),
        ],
    ),
    ("klad serves as much as --threads allows", &[("klad_thread_cpu_seconds_total{group=\"worker\"}", 0., 19.8)]),
    (
        "Clients are slow: requests wait for the clients to take their answers",
        &[
            ("klad_http_request_duration_seconds_bucket{op=\"get\",le=\"1\"}", 0., 100.),
            ("klad_http_request_duration_seconds_sum{op=\"get\"}", 0., 50.),
            ("klad_http_request_phase_seconds_sum{op=\"get\",phase=\"write\"}", 0., 45.),
        ],
    ),
    (
        "more than --memory allows",
        &[("process_resident_memory_bytes", 4e9, 4e9), ("klad_memory_budget_bytes{part=\"total\"}", 1e9, 1e9)],
    ),
    (
        "The memory for bodies is almost used up",
        &[
            ("klad_body_budget_used_bytes{share=\"all\"}", 95., 95.),
            ("klad_body_budget_limit_bytes{share=\"all\"}", 100., 100.),
        ],
    ),
    ("95 of at most 100 connections", &[("klad_connections_open", 95., 95.), ("klad_connections_limit", 100., 100.)]),
    ("95 of at most 100 file descriptors", &[("process_open_fds", 95., 95.), ("process_max_fds", 100., 100.)]),
    ("The last reload of the configuration has failed", &[("klad_config_last_reload_success", 0., 0.)]),
    ("klad has no connection to 10.0.0.2:9042", &[("klad_cluster_node_connected{node=\"10.0.0.2:9042\"}", 0., 0.)]),
];

/// A klad that has no trouble: no sentence.
const WELL: Series = &[
    ("klad_ready", 1., 1.),
    ("klad_storage_writes_stopped", 0., 0.),
    ("klad_storage_observation_age_seconds", 0.2, 0.2),
    ("klad_storage_disk_free_bytes", 1e11, 1e11),
    ("klad_storage_disk_reserve_bytes", 1e9, 1e9),
    ("klad_rocksdb_background_errors_total", 3., 3.),
    ("klad_rocksdb_write_stall{state=\"delayed\"}", 0., 0.),
    ("klad_http_request_duration_seconds_count{op=\"get\",outcome=\"ok\"}", 0., 1e5),
    ("klad_refused_total{reason=\"overloaded\"}", 7., 7.),
    // Operations wait for a moment, but not all the time.
    ("klad_queue_oldest_seconds{queue=\"writes\"}", 0., 0.4),
    ("klad_thread_cpu_seconds_total{group=\"worker\"}", 0., 5.),
    ("klad_connections_open", 10., 10.),
    ("klad_connections_limit", 100., 100.),
    ("klad_config_last_reload_success", 1., 1.),
];

/// Returns the sentences that the page's own code makes of samples of ten seconds.
fn sentences(browser: &Browser, series: Series) -> Vec<Value> {
    let found = browser.run(&format!(
        "return (async () => {{ \
            const [{{ SeriesSet }}, {{ verdict }}] = await Promise.all(['figures', 'verdict'].map((name) => import('/console/' + name + '.js'))); \
            const all = {}; \
            const set = new SeriesSet(all.map(([name]) => name), 1000); \
            const samples = Array.from({{ length: 11 }}, (_, at) => \
                ({{ t: 1e12 + at * 1000, up: at * 1000, set, values: all.map(([, from, to]) => from + (to - from) * at / 10) }})); \
            return verdict(samples, 2).findings.map((one) => one.text); \
        }})()",
        json!(series)
    ));
    found.as_array().expect("a list").clone()
}

#[test]
fn each_cause_has_its_sentence_and_a_healthy_klad_has_none() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    open(&browser, &server, "now");
    browser.wait("document.querySelector('.chart')");
    for (words, series) in CAUSES {
        let found = sentences(&browser, series);
        let says = |text: &Value| text.as_str().unwrap().replace('\u{a0}', " ").contains(words);
        assert!(found.len() == 1 && says(&found[0]), "{words}: {found:?}");
    }
    assert_eq!(sentences(&browser, WELL), Vec::<Value>::new());

    // A chart explains itself, and with the keyboard too.
    browser.run("document.querySelector('#chart-requests .question').focus()");
    browser.press(&['\u{E007}']);
    browser.wait("getComputedStyle(document.querySelector('#about-requests')).display === 'block'");
    let tip = browser.run("return document.querySelector('#about-requests').textContent");
    for words in ["Time from the arrival of a request's head", "When it looks bad: A drop to zero"] {
        assert!(tip.as_str().unwrap().contains(words), "{words}: {tip}");
    }
    browser.press(&['\u{E00C}']);
    browser.wait("getComputedStyle(document.querySelector('#about-requests')).display === 'none'");
    // The memory engine has no tables, so there are no charts of them.
    assert_eq!(browser.run("return document.querySelectorAll('#chart-levels, #chart-syncs').length"), 0);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn care_changes_options_makes_checkpoints_compacts_and_drains() {
    let server = ServerBuilder::new("rocksdb").start();
    server.client().store("/v0/entity?id=key", b"value");
    let browser = Browser::start();
    open(&browser, &server, "care");
    let option = |name: &str| {
        let config: Value = serde_json::from_slice(&server.admin("/config").body).unwrap();
        let all = config["options"].as_array().unwrap().clone();
        all.into_iter().find(|option| option["name"] == name).unwrap()
    };
    browser.wait("document.querySelector('[aria-label=\"Change slow-request\"]')");
    browser.run("document.querySelector('[aria-label=\"Change slow-request\"]').click()");
    browser.fill(".options form input", "250ms");
    browser.click(".options form button", "Change");
    browser.wait(
        "!document.querySelector('.options form') && document.body.innerText.includes('slow-request is changed')",
    );
    assert_eq!(
        (&option("slow-request")["value"], &option("slow-request")["source"]["kind"]),
        (&json!("250ms"), &json!("admin"))
    );
    // A value that klad does not take changes nothing, and klad's words are shown.
    browser.run("document.querySelector('[aria-label=\"Change slow-request\"]').click()");
    browser.fill(".options form input", "soon");
    browser.click(".options form button", "Change");
    browser.wait(
        "document.querySelector('section[aria-labelledby=config] .problem').textContent.includes('slow-request')",
    );
    assert_eq!(option("slow-request")["value"], "250ms");
    browser.fill("section[aria-labelledby=config] select", "debug");
    browser.wait("document.body.innerText.includes('log-level is changed')");
    assert_eq!(option("log-level")["value"], "debug");

    browser.fill("section[aria-labelledby=checkpoints] input", "before");
    browser.click("button", "Make a checkpoint");
    browser.wait("document.querySelector('[aria-label=\"Remove before\"]')");
    assert!(server.admin("/checkpoints").text().contains("\"before\""));
    browser.run("document.querySelector('[aria-label=\"Remove before\"]').click()");
    browser.click(".panel button", "Remove");
    browser.wait("!document.querySelector('[aria-label=\"Remove before\"]')");
    assert!(!server.admin("/checkpoints").text().contains("\"before\""));
    browser.click("button", "Compact everything");
    browser.wait(
        "document.querySelector('section[aria-labelledby=compaction]').innerText.includes('The last job: compaction')",
    );
    let says =
        browser.run("return document.querySelector('section[aria-labelledby=compaction] [role=status]').innerText");
    assert!(says.as_str().unwrap().contains(": done"), "{says}");

    browser.click("section[aria-labelledby=drain] button", "Drain");
    browser.wait("document.body.innerText.includes('klad drains.') && document.querySelector('.checks .sign.bad')");
    assert_eq!(server.admin("/readyz").status, 503);
    browser.click("section[aria-labelledby=drain] button", "Stop draining");
    browser.wait(
        "document.body.innerText.includes('klad does not drain.') && !document.querySelector('.checks .sign.bad')",
    );
    assert_eq!(server.admin("/readyz").status, 200);
}

#[test]
fn a_change_of_the_address_and_a_focus_before_the_paint_count() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    // The address changes as soon as the page has started.
    browser.before_each_page(
        "new MutationObserver((changes, observer) => { \
             if (!document.querySelector('#app .start')?.textContent.startsWith('Asking klad')) return; \
             observer.disconnect(); \
             location.hash = '#/care'; \
         }).observe(document, { childList: true, subtree: true });",
    );
    open(&browser, &server, "now");
    browser.wait("document.querySelector('h1')?.textContent === 'Care' && document.querySelector('.checks li')");
    // The user enters a field as soon as the page has it.
    browser.run(
        "new MutationObserver((changes, observer) => { \
             const field = document.querySelector('[role=search] input'); \
             if (!field) return; \
             observer.disconnect(); \
             field.focus(); \
         }).observe(document, { childList: true, subtree: true }); \
         document.querySelector('nav a').focus(); \
         location.hash = '#/data'",
    );
    browser.wait("document.querySelector('.keys')?.innerText.includes('No keys')");
    assert_eq!(browser.run("return document.activeElement === document.querySelector('[role=search] input')"), true);
}

/// Answers in klad's place, so that no request is too old to be shown. The answer about puts must wait.
const SLOW_OF_EACH_OPERATION: &str = r#"
const real = window.fetch;
window.read = [];
window.fetch = async (to, options) => {
    if (!to.startsWith("/debug/slow")) return real(to, options);
    const op = new URLSearchParams(to.split("?")[1]).get("op") || "delete";
    const one = { op, started: "2026-01-01T00:00:00.000Z", total_ms: 1, phases: { engine_ms: 1 }, mostly: "engine",
        status: 200, outcome: "ok", key_bytes: 1, received_bytes: 1, sent_bytes: 1, worker: 0 };
    const answer = new Response();
    answer.json = async () => {
        if (op === "put") await new Promise((done) => { window.release = done; });
        read.push(op);
        return { requests: [one] };
    };
    return answer;
};"#;

#[test]
fn a_late_answer_about_another_operation_is_not_shown() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    browser.before_each_page(SLOW_OF_EACH_OPERATION);
    open(&browser, &server, "why");
    browser.run("window.shown = () => Array.from(document.querySelectorAll('.slow .op'), (one) => one.textContent)");
    browser.wait("shown().join() === 'delete'");
    let operation = "section[aria-labelledby=slowest] select";
    browser.fill(operation, "put");
    // What is not known yet is not shown either.
    browser.wait("window.release && shown().length === 0");
    browser.fill(operation, "get");
    browser.wait("shown().join() === 'get'");
    browser.run("release()");
    browser.wait("read.join() === 'delete,get,put'");
    assert_eq!(browser.run("return shown()"), json!(["get"]));
}

/// Gives the page the session and the figures of a klad in front of two nodes, of which one is lost.
const OF_A_CLUSTER: &str = r#"
const real = window.fetch;
const nodes = ["10.0.0.1:9042", "10.0.0.2:9042"];
const names = ["answered_total", "failed_total", "seconds_total", "connected"].flatMap((name) => nodes.map((node) => `klad_cluster_node_${name}{node="${node}"}`));
const sample = (at) => [1e12 + at * 1000, at * 1000, at * 100, 0, 0, at * 7, at * 0.2, at * 7, 1, 0];
const event = (kind, data) => new TextEncoder().encode(`event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
const stream = () => new ReadableStream({ start(to) {
    let at = 20;
    to.enqueue(event("series", { interval_ms: 1000, started_ms: 1, left_out: true, series: names }));
    to.enqueue(event("history", { samples: Array.from({ length: at }, (_, number) => sample(number)) }));
    setInterval(() => { to.enqueue(event("sample", sample(at))); at += 1; }, 1000);
} });
window.fetch = async (to, options) => {
    if (to === "/console/events") return new Response(stream());
    const answer = await real(to, options);
    return to === "/console/session" ? new Response(JSON.stringify({ ...await answer.json(), engine: "cassandra" })) : answer;
};"#;

#[test]
fn the_nodes_of_a_cluster_are_shown_with_their_state_and_latency() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    // Without a cluster there is no such view.
    open(&browser, &server, "cluster");
    browser.wait("document.querySelectorAll('nav a').length === 4");
    browser.before_each_page(OF_A_CLUSTER);
    for width in [390, 1280] {
        browser.look(width, 900, false);
        open(&browser, &server, "cluster");
        browser.wait("document.querySelectorAll('main tbody tr').length === 2 && document.querySelector('#chart-node-requests canvas')");
        let rows = browser.run("return Array.from(document.querySelectorAll('main tbody tr')).map((row) => row.innerText.replace(/\\s+/g, ' '))");
        assert_eq!(rows, json!(["10.0.0.1:9042 ✓ connected 100/s 0/s 2 ms", "10.0.0.2:9042 ✕ lost 0/s 7/s 1 s"]));
        for words in ["keeps 1 copy of each key", "Some values are not shown: there are too many series"] {
            browser.wait(&format!("document.body.innerText.includes('{words}')"));
        }
        assert_well_drawn(&browser, "cluster", width, false);
    }
    // The view Now names the lost node.
    open(&browser, &server, "now");
    browser.wait("document.querySelector('.verdict').textContent.includes('klad has no connection to 10.0.0.2:9042')");
}

/// Gives the page a stream of events whose events the test sends. Time stands still, so no silence is too long.
const FED: &str = r"
Date.now = () => 1e12;
const timeout = window.setTimeout;
window.setTimeout = (then, ms, ...rest) => ms >= 5000 ? 0 : timeout(then, ms, ...rest);
const real = window.fetch;
window.fetch = (to, options) => to === '/console/events'
    ? Promise.resolve(new Response(new ReadableStream({ start(made) { window.stream = made; } }))) : real(to, options);
window.feed = (kind, data) => stream.enqueue(new TextEncoder().encode(`event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`));
window.series = (started_ms) => feed('series', { interval_ms: 1000, started_ms, series: ['klad_http_request_duration_seconds_count{op=\'get\',outcome=\'ok\'}'.replaceAll('\'', '\u0022')] });
";

#[test]
fn what_is_late_is_not_known_before_a_new_process_has_two_samples() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    browser.before_each_page(FED);
    open(&browser, &server, "now");
    browser.wait("window.stream");
    let says = |words: &str| browser.wait(&format!("document.querySelector('.verdict').innerText.includes('{words}')"));
    browser.run("series(1); feed('history', { samples: [[1e12, 1000, 0], [1e12 + 1000, 2000, 30]] })");
    says("30 requests/s");
    // The new process has counted more already, and its clock is an hour behind.
    browser.run("series(2); feed('sample', [1e12 - 36e5, 500, 1000])");
    says("not known yet");
    assert_eq!(browser.run("return document.querySelectorAll('.verdict .good, .tiles').length"), 0);
    browser.run("feed('sample', [1e12 - 36e5 + 1000, 1500, 1070])");
    says("70 requests/s");
    says("Nothing is late");

    // While the page is paused, it shows what it has shown.
    browser.click("button", "Pause");
    browser.wait("document.querySelector('.toolbar [role=status]').textContent.includes('Paused')");
    browser.run("feed('sample', [1e12 - 36e5 + 2000, 2500, 1240]); stream.hasEnded = true; stream.close()");
    browser.wait("document.querySelector('.live').dataset.live === 'false' && !stream.hasEnded");
    says("70 requests/s");
    // The next stream goes on with the same process.
    browser.run("feed('sample', [1e12 - 36e5 + 3000, 3500, 1300])");
    browser.wait("document.querySelector('.live').dataset.live === 'true'");
    says("70 requests/s");
    browser.click("button", "Continue");
    says("100 requests/s");
}

#[test]
fn the_stream_orders_samples_by_the_time_since_the_start_and_not_by_the_clock() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    open(&browser, &server, "now");
    let found = browser.run(
        "return (async () => { \
            const [{ Stream }, { Figures }] = await Promise.all(['stream', 'figures'].map((name) => import('/console/' + name + '.js'))); \
            const stream = new Stream(() => {}); \
            const take = (kind, data) => stream.take(`event: ${kind}\\ndata: ${JSON.stringify(data)}`); \
            const series = (started_ms) => take('series', { interval_ms: 1000, started_ms, series: ['klad_x_total'] }); \
            const first = [[7000, 1000, 1], [8000, 2000, 2]]; \
            series(1); take('history', { samples: first }); \
            series(1); take('history', { samples: first }); \
            take('sample', [2000, 3000, 12]); \
            series(2); take('sample', [1000, 1000, 50]); take('sample', [2000, 2000, 55]); \
            const rate = new Figures({ what: [{ family: 'klad_x_total', of: 'rate' }] }, null).of(stream.samples, -1e9); \
            return { at: rate.at, rates: rate.columns[0], up: stream.samples.map((one) => one.up) }; \
        })()",
    );
    // The samples of the first process have kept their distances. A row without values makes the gap of the restart.
    assert_eq!(found["up"], json!([1000, 2000, 3000, 1000, 2000]));
    assert_eq!(found["at"], json!([-2, -1, 0, 0.5, 1, 2]));
    assert_eq!(found["rates"], json!([null, 1, 10, null, null, 5]));
}

#[test]
fn a_clock_that_is_set_forward_is_a_gap_and_a_new_start_of_the_stream_forgets_the_old_silence() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    open(&browser, &server, "now");
    let found = browser.run(
        "return (async () => { \
            const { Stream } = await import('/console/stream.js'); \
            const stream = new Stream(() => {}); \
            const take = (kind, data) => stream.take(`event: ${kind}\\ndata: ${JSON.stringify(data)}`); \
            take('series', { interval_ms: 1000, started_ms: 1, series: ['klad_x_total'] }); \
            [[1000, 1000, 1], [2000, 2000, 2], [3602000, 3000, 3]].forEach((sample) => take('sample', sample)); \
            window.fetch = () => new Promise(() => {}); \
            Object.assign(stream, { isLive: true, answeredAt: 1 }); \
            stream.start(); \
            const states = [stream.isLive, stream.isGone]; \
            stream.stop(); \
            return { at: stream.samples.map((one) => one.t), states, since: stream.answeredAt }; \
        })()",
    );
    assert_eq!(found["at"], json!([1000, 2000, 3_602_000]));
    assert_eq!(found["states"], json!([false, false]));
    assert_ne!(found["since"], 1);
}

#[test]
fn the_choice_of_an_operation_is_for_the_charts_of_latency_only() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    open(&browser, &server, "now");
    let chosen = browser.run(
        "return (async () => { \
            const [{ Figures }, found] = await Promise.all([import('/console/figures.js'), fetch('/console/charts.json')]); \
            const charts = (await found.json()).charts; \
            return charts.filter((chart) => new Figures(chart, 'get').items.some((item) => item.where?.op === 'get')).map((chart) => chart.id); \
        })()",
    );
    assert_eq!(chosen, json!(["latency-heat", "latency", "phases"]));
}

#[test]
fn the_page_says_why_klad_turns_it_away_and_comes_in_later() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    let others: Vec<Client> = std::iter::repeat_with(|| {
        let mut client = Client::connect(server.admin);
        client.send("GET", "/console/events", &[], None).unwrap();
        assert_eq!(client.head().unwrap().0, 200);
        client
    })
    .take(16)
    .collect();
    browser.before_each_page(
        "const real = window.fetch, now = Date.now; window.refused = 0; window.later = 0; window.attempts = 0; \
         Date.now = () => now() + later; \
         window.fetch = (to, options) => { \
             if (to === '/console/events') attempts += 1; \
             return to === '/console/session' && refused++ === 0 \
                 ? Promise.resolve(new Response('{}', { status: 503 })) : real(to, options); \
         };",
    );
    open(&browser, &server, "now");
    browser.wait("document.querySelector('.gone').innerText.includes('too many consoles are open')");
    // klad answers every attempt, so the page does not say that klad has gone, however long klad rejects it.
    browser.run("later = 60000; attempts = 0");
    browser.wait("attempts > 1 && document.querySelector('.live').innerText === 'connecting'");
    browser.run("later = 0");
    drop(others);
    browser.wait("document.querySelector('.live').dataset.live === 'true' && document.querySelector('.gone').hidden");
}

#[test]
fn care_asks_one_thing_at_a_time_and_nothing_while_it_is_hidden() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    browser.before_each_page(
        "const real = window.fetch; window.ticks = []; window.asked = []; window.end = new AbortController(); \
         window.setInterval = (tick) => ticks.push(tick); AbortSignal.timeout = () => end.signal; \
         Object.defineProperty(document, 'hidden', { get: () => Boolean(window.isHidden) }); \
         window.fetch = (to, options) => { \
             if (!to.startsWith('/console/')) asked.push(to); \
             return window.isHeld && to === '/drain' \
                 ? new Promise((done, fail) => options.signal.addEventListener('abort', () => fail(options.signal.reason))) : real(to, options); \
         };",
    );
    open(&browser, &server, "care");
    browser.wait("document.querySelectorAll('.checks li').length > 2 && ticks.length === 3");
    let tick = "asked.length = 0; document.dispatchEvent(new Event('visibilitychange')); ticks.forEach((tick) => tick()); return asked.sort()";
    assert_eq!(browser.run(&format!("window.isHidden = true; {tick}")), json!([]));
    // Once all that was asked before has been answered.
    wait_until("each is asked for once", || {
        browser.run(&format!("window.isHidden = false; {tick}")) == json!(["/compact", "/drain", "/readyz?verbose"])
    });
    // A request without an answer ends after a time, and others follow.
    browser.wait("(window.isHeld = true, asked.length = 0, ticks.forEach((tick) => tick()), asked.includes('/drain'))");
    browser.run("end.abort(new DOMException('', 'TimeoutError'))");
    browser.wait(
        "document.querySelector('section[aria-labelledby=drain] .problem').textContent === 'klad does not answer.'",
    );
    browser.wait("(asked.length = 0, ticks.forEach((tick) => tick()), asked.includes('/drain'))");
}

#[test]
fn a_page_that_is_opened_hidden_asks_for_nothing_before_it_is_seen() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    browser.before_each_page(
        "const real = window.fetch; window.asked = []; \
         Object.defineProperty(document, 'hidden', { get: () => !window.isSeen }); \
         const listen = document.addEventListener; \
         document.addEventListener = function (name, ...rest) { \
             if (name === 'visibilitychange') setTimeout(() => { window.listens = true; }); \
             return listen.call(this, name, ...rest); \
         }; \
         window.fetch = (to, options) => { \
             if (to !== '/console/charts.json') asked.push(document.hidden); \
             return real(to, options); \
         };",
    );
    open(&browser, &server, "now");
    browser.wait("document.querySelector('.start[role=status]')?.innerText === 'Asking klad …'");
    // When the page begins to listen, it has had its first opportunity to ask.
    browser.wait("window.listens");
    browser.wait("(window.isSeen = true, document.dispatchEvent(new Event('visibilitychange')), asked.length > 2)");
    assert_eq!(browser.run("return asked.includes(true)"), false);
}

#[test]
fn the_console_and_the_reports_have_their_colours_from_one_file() {
    let server = ServerBuilder::new("memory").start();
    let defines = |name: &str| server.admin(&format!("/console/{name}.css")).text().contains("--paper:");
    assert_eq!((defines("colours"), defines("console")), (true, false));
}
