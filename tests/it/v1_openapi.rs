//! The `OpenAPI` document of `/v1` against a running server: schemathesis sends requests that the document allows, and
//! ones that it does not allow, and compares each answer with the document. Unit tests of `http::v1::description`
//! compare the document with the source.

use super::support::one_key::head;
use super::support::programs::schemathesis;
use super::support::{ENGINES, Server, ServerBuilder};

/// The number of requests for each operation in each phase.
const EXAMPLES: &str = "20";

/// All phases: the examples of the document, each border of each parameter, and random requests.
const ALL: &str = "examples,coverage,fuzzing";

/// Tests a server against a document with the phases of schemathesis. The error is the list of faults.
fn test(server: &Server, document: &str, phases: &str) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("openapi.json");
    std::fs::write(&path, document).unwrap();
    let url = format!("http://{}", server.address);
    let arguments = ["run", path.to_str().unwrap(), "--url", &url, "--checks", "all", "--seed", "1"];
    let bounds = ["--max-examples", EXAMPLES, "--phases", phases, "--no-shrink"];
    // A slow machine is no fault. A change feed never ends, so that schemathesis would wait for its end.
    let patience = ["--suppress-health-check", "all", "--request-timeout", "300", "--exclude-path", "/v1/changes"];
    schemathesis(&[&arguments[..], &bounds, &patience].concat(), directory.path()).map(|_| ())
}

fn document(server: &Server) -> String {
    let answer = server.client().get("/v1/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.text()
}

#[test]
fn schemathesis_finds_no_fault_on_disk() {
    let server = ServerBuilder::new(ENGINES[0]).start();
    test(&server, &document(&server), ALL).unwrap_or_else(|faults| panic!("{faults}"));
}

#[test]
fn schemathesis_finds_no_fault_in_memory() {
    let server = ServerBuilder::new("memory").start();
    // Random requests take most of the time. They test above all how requests are read, which is the same for all
    // engines.
    test(&server, &document(&server), "examples,coverage").unwrap_or_else(|faults| panic!("{faults}"));
}

#[test]
fn twin_a_document_that_says_something_else_is_noticed() {
    let server = ServerBuilder::new("memory").start();
    let mut document: serde_json::Value = serde_json::from_str(&document(&server)).unwrap();
    document["paths"].as_object_mut().unwrap().retain(|path, _| path == "/v1/limits");
    let paths = document["paths"]["/v1/limits"].as_object_mut().unwrap();
    paths.retain(|method, _| method == "get");
    test(&server, &document.to_string(), ALL).unwrap_or_else(|faults| panic!("{faults}"));
    document["components"]["schemas"]["Limits"]["properties"]["engine"] = serde_json::json!({"type": "integer"});
    let faults = test(&server, &document.to_string(), ALL).expect_err("the engine is no number");
    assert!(faults.contains("engine"), "{faults}");
}

#[test]
fn the_page_is_complete_without_scripts_and_network() {
    let server = ServerBuilder::new("memory").start();
    let page = server.client().get("/v1/docs");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'; style-src"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let text = page.text();
    assert!(text.contains("/v1/kv/{key}") && text.contains("If-None-Match"), "{text}");
    assert!(!text.contains("<script") && !text.contains("src="), "{text}");
    assert_eq!(head(&mut server.client(), "/v1/docs", &[]).status, 200);
    for path in ["/v1/docs", "/v1/openapi.json"] {
        assert_eq!(server.client().put(path, b"x").status, 405);
        assert_eq!(server.client().get(&format!("{path}?x=1")).status, 400);
    }
}
