//! The description of this interface: `openapi.json`, an `OpenAPI` 3.1 document, and a page that shows it. Both are
//! compiled into the program. The tests below compare the document with `route` and with the error codes: change them
//! together. `tests/it/v1_openapi.rs` compares it with a running server. `v1` calls this.

use std::sync::LazyLock;

use bytes::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{HeaderMap, StatusCode};
use klad_page::parts::{self, Cell, Column};
use klad_page::{Page, STATIC_POLICY};
use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::http::answer::{Fields, Reply};
use crate::http::body::Content;

const OPENAPI: &str = include_str!("openapi.json");

/// The page, which klad makes at the first request for it.
static PAGE: LazyLock<Bytes> = LazyLock::new(|| page(&document()).into());

/// A form of the description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Description {
    /// The `OpenAPI` document.
    OpenApi,
    /// A page for people.
    Page,
}

/// Answers with the description.
pub(super) fn answer(description: Description) -> Reply {
    let mut others = HeaderMap::new();
    let body = match description {
        Description::OpenApi => {
            others.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Bytes::from_static(OPENAPI.as_bytes())
        }
        Description::Page => {
            others.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
            others.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(STATIC_POLICY));
            others.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            PAGE.clone()
        }
    };
    Reply::new(StatusCode::OK, Content::bytes(body))
        .with(Fields { others: Some(Box::new(others)), ..Fields::default() })
}

fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("the tests parse it")
}

/// The text of a member; empty if it is absent.
fn text<'v>(value: &'v Value, member: &str) -> &'v str {
    value[member].as_str().unwrap_or_default()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// Follows a `$ref` within the document.
fn resolved<'v>(document: &'v Value, value: &'v Value) -> &'v Value {
    let Some(target) = value["$ref"].as_str() else { return value };
    document.pointer(target.trim_start_matches('#')).unwrap_or(value)
}

fn page(document: &Value) -> String {
    let information = &document["info"];
    let header = html! {
        header {
            div.kind { "OpenAPI " (text(document, "openapi")) ", as data: " a href="openapi.json" { "openapi.json" } }
            h1 { (text(information, "title")) }
            @for paragraph in text(information, "description").split("\n\n") { p { (marked(paragraph)) } }
        }
    };
    let mut page = Page::new(text(information, "title")).with(header);
    let mut paths: Vec<_> = members(&document["paths"]).collect();
    paths.sort_by_key(|(_, item)| position_of_tag(document, item));
    for (path, item) in paths {
        let content = html! {
            @for (method, it) in members(item) { (operation(document, method, it)) }
        };
        page = page.section(path, &content);
    }
    page.section("Types", &types(document)).section("Errors", &errors(document)).into_static_html()
}

/// The position of the first tag of a path in the document's list of tags.
fn position_of_tag(document: &Value, item: &Value) -> Option<usize> {
    let (_, operation) = members(item).next()?;
    document["tags"].as_array()?.iter().position(|tag| tag["name"] == operation["tags"][0])
}

/// Text with `code` in backticks.
fn marked(text: &str) -> Markup {
    html! {
        @for (number, part) in text.split('`').enumerate() {
            @if number % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn operation(document: &Value, method: &str, operation: &Value) -> Markup {
    let own = operation["parameters"].as_array().into_iter().flatten();
    let parameters = own.map(|parameter| parameter_row(document, resolved(document, parameter))).collect::<Vec<_>>();
    let bodies = members(&operation["requestBody"]["content"])
        .map(|(kind, body)| vec![Cell::from(kind.as_str()), Cell::from(schema(document, &body["schema"]))]);
    let bodies = bodies.collect::<Vec<_>>();
    let responses = members(&operation["responses"]).map(|(status, response)| {
        let response = resolved(document, response);
        let headers = members(&response["headers"]).map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        let kinds = members(&response["content"]).map(|(kind, _)| kind.as_str()).collect::<Vec<_>>();
        let cells = [status, &kinds.join(", "), &headers.join(", "), &plain(text(response, "description"))];
        cells.map(Cell::from).to_vec()
    });
    let responses = responses.collect::<Vec<_>>();
    let columns = |names: [&'static str; 4]| names.map(Column::Words);
    html! {
        h3 { (method.to_uppercase()) " – " (marked(text(operation, "summary"))) }
        @for paragraph in text(operation, "description").split("\n\n") { p { (marked(paragraph)) } }
        @if !parameters.is_empty() {
            (parts::table("Parameters", &columns(["Parameter", "In", "Type", "Meaning"]), &parameters))
        }
        @if !bodies.is_empty() {
            (parts::table("Body", &[Column::Words("Body of the request"), Column::Words("Type")], &bodies))
        }
        (parts::table("Answers", &columns(["Status", "Body", "Headers", "Meaning"]), &responses))
    }
}

fn parameter_row(document: &Value, parameter: &Value) -> Vec<Cell> {
    let place = if parameter["required"] == true { "required" } else { "optional" };
    vec![
        Cell::from(text(parameter, "name")),
        Cell::from(format!("{}, {place}", text(parameter, "in"))),
        Cell::from(schema(document, &parameter["schema"])),
        Cell::from(plain(text(parameter, "description"))),
    ]
}

/// A schema in a few words.
fn schema(document: &Value, schema_or_reference: &Value) -> String {
    let schema_itself = resolved(document, schema_or_reference);
    if let Some(value) = schema_itself.get("const") {
        return value.to_string();
    }
    if let Some(words) = schema_itself["enum"].as_array() {
        return words.iter().map(|word| word.as_str().unwrap_or_default()).collect::<Vec<_>>().join(" | ");
    }
    for several in ["oneOf", "anyOf"] {
        if let Some(forms) = schema_itself[several].as_array() {
            return forms.iter().map(|form| schema(document, form)).collect::<Vec<_>>().join(" | ");
        }
    }
    if let Some(name) = schema_or_reference["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        return name.to_owned();
    }
    if let Some(members) = schema_itself["properties"].as_object() {
        return format!("object: {}", members.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
    }
    if let Some(items) = schema_itself.get("items") {
        return format!("array of {}", schema(document, items));
    }
    match &schema_itself["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | "),
        kind => kind.as_str().unwrap_or("anything").to_owned(),
    }
}

/// The schemas that have members.
fn types(document: &Value) -> Markup {
    let with_members =
        members(&document["components"]["schemas"]).filter(|(_, schema)| schema["properties"].is_object());
    html! {
        @for (name, it) in with_members {
            h3 { (name) }
            p { (marked(text(it, "description"))) }
            @let rows = members(&it["properties"]).map(|(member, of)| {
                // The codes have a table of their own.
                let kind = if member == "code" { "string".to_owned() } else { schema(document, of) };
                let of = if of["description"].is_null() { resolved(document, of) } else { of };
                [member.as_str(), &kind, &plain(text(of, "description"))].map(Cell::from).to_vec()
            });
            (parts::table(name, &["Member", "Type", "Meaning"].map(Column::Words), &rows.collect::<Vec<_>>()))
        }
    }
}

/// Removes backticks, because cells of tables are plain text.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// Shows the error codes, which the schema of a problem document lists with their causes.
fn errors(document: &Value) -> Markup {
    let codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["oneOf"].as_array();
    let rows = codes
        .into_iter()
        .flatten()
        .map(|code| vec![Cell::from(text(code, "const")), Cell::from(plain(text(code, "description")))]);
    parts::table("Errors", &[Column::Words("code"), Column::Words("Cause")], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hyper::Method;

    use super::*;
    use crate::http::api_error::ApiError;
    use crate::http::route::Head;
    use crate::http::service::Options;
    use crate::http::v1::route::{PREFIX, route};
    use klad_storage::operation::Durability;

    type Names = BTreeSet<String>;

    fn names<T: ToString>(all: impl IntoIterator<Item = T>) -> Names {
        all.into_iter().map(|name| name.to_string()).collect()
    }

    const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"];

    /// Asks `route`. In a path of the document, the key is `k`.
    fn ask(method: &str, path: &str, query: &str) -> Result<(), ApiError> {
        let options = Options {
            key_bytes_max: 100,
            value_bytes_max: 100,
            durability: Durability::Sync,
            batch_items_max: 1,
            batch_bytes_max: 1,
            scan_time_max: std::time::Duration::from_secs(1),
            heartbeat: std::time::Duration::from_secs(1),
        };
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let headers = [(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))].into_iter().collect();
        let path = path.replace("{key}", "k");
        route(&Head { method: &method, path: &path, query, headers: &headers }, &options).map(|_| ())
    }

    /// The methods that `route` takes on a path. With `key64` in the query, the path `/v1/kv` stands for one key.
    fn methods(path: &str, query: &str) -> Names {
        names(METHODS.into_iter().filter(|method| {
            !matches!(ask(method, path, query), Err(ApiError::MethodNotAllowed(_) | ApiError::NoSuchPath))
        }))
    }

    /// The query parameters that `route` knows, from its complaint about an unknown one.
    fn parameters(method: &str, path: &str, query: &str) -> Names {
        match ask(method, path, &format!("{query}zz=1")) {
            Err(ApiError::UnknownParameter { known, .. }) => names(known.split(", ").filter(|name| !name.is_empty())),
            // The form without a key in the path needs one in the query.
            Err(ApiError::MissingKey) => Names::default(),
            other => panic!("{method} {path}?{query} takes an unknown parameter: {other:?}"),
        }
    }

    /// What the document and `route` say differently.
    fn differences(document: &Value, source: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: String, described: Names, known: Names| {
            if described != known {
                found.push(format!("{what}: described {described:?}, known {known:?}"));
            }
        };
        let paths = names(members(&document["paths"]).map(|(path, _)| path));
        let literals = source.split('"').filter(|literal| literal.starts_with("/v1/") || *literal == "/v1/kv");
        let literals = literals.filter(|literal| *literal != PREFIX).map(|literal| literal.replace("kv/", "kv/{key}"));
        compare("paths".to_owned(), paths, names(literals));
        for (path, item) in members(&document["paths"]) {
            let described = members(item).map(|(method, _)| method.to_uppercase()).collect();
            let queries: &[&str] = if path == "/v1/kv" { &["", "key64=aw&"] } else { &[""] };
            let known = queries.iter().flat_map(|query| methods(path, query)).collect();
            compare(path.clone(), described, known);
            for (method, operation) in members(item) {
                let method = method.to_uppercase();
                let described = operation["parameters"].as_array().into_iter().flatten();
                let described = described.map(|parameter| resolved(document, parameter));
                let described = described.filter(|parameter| parameter["in"] == "query");
                let described = names(described.map(|parameter| text(parameter, "name")));
                let takes = |query: &&&str| methods(path, query).contains(&method);
                let known = queries.iter().filter(takes).flat_map(|query| parameters(&method, path, query)).collect();
                compare(format!("{method} {path}"), described, known);
            }
        }
        let codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["oneOf"].as_array();
        let described = names(codes.into_iter().flatten().map(|code| text(code, "const")));
        let known = names(ApiError::CODES.iter().copied().chain([ApiError::TooManyConnections.code()]));
        compare("codes".to_owned(), described, known);
        found
    }

    const SOURCE: &str = include_str!("route.rs");

    #[test]
    fn the_document_describes_what_route_knows() {
        assert_eq!(differences(&document(), SOURCE), Vec::<String>::new());
    }

    #[test]
    fn twin_a_document_that_says_something_else_is_noticed() {
        for (right, wrong) in [
            ("\"/v1/limits\"", "\"/v1/limit\""),
            ("\"delete\"", "\"patch\""),
            ("\"name\": \"ttl\"", "\"name\": \"tll\""),
            ("\"not-a-number\"", "\"no-number\""),
        ] {
            assert!(OPENAPI.contains(right), "{right}");
            let wrong = serde_json::from_str(&OPENAPI.replace(right, wrong)).expect("JSON");
            assert!(!differences(&wrong, SOURCE).is_empty(), "{right}");
        }
        let more = format!("{SOURCE}\"/v1/more\"");
        assert_eq!(differences(&document(), &more).len(), 1);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut open = vec![&document];
        let mut count = 0;
        while let Some(value) = open.pop() {
            if let Some(target) = value["$ref"].as_str() {
                assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                count += 1;
            }
            open.extend(members(value).map(|(_, member)| member));
            open.extend(value.as_array().into_iter().flatten());
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn the_page_shows_every_path_parameter_and_code() {
        let document = document();
        let page = page(&document);
        let shown = |what: &str| assert!(page.contains(what), "{what} is not on the page");
        members(&document["paths"]).for_each(|(path, _)| shown(path));
        for code in ApiError::CODES {
            shown(code);
        }
        ["cursor", "key64", "If-Match", "application/x-ndjson"].into_iter().for_each(shown);
        assert!(!page.contains("<script"));
    }
}
