//! Self-contained HTML pages with charts: one file that works from disk without a network, on narrow and wide
//! screens, in light and dark colour schemes.
//!
//! ```text
//!     parts (tables, key figures) ─┐
//!     charts (data) ───────────────┴─▶ Page ──▶ one file: style, uPlot, data as JSON, page.js, which draws
//! ```
//!
//! ```
//! use klad_page::{Axis, Chart, Colour, Page, Series, Unit};
//!
//! let chart = Chart::new("rate", "Rate", Axis::time(0.0, 2.0), Axis::linear(Unit::PerSecond), vec![0.5, 1.5])
//!     .with(Series::line("answered", Colour::Blue, vec![Some(990.0), Some(1_010.0)]));
//! let page = Page::new("A run").with(&chart).into_html();
//! assert!(page.starts_with("<!DOCTYPE html>"));
//! ```
//!
//! A page must never fetch anything, and must show a message in place of a chart that it cannot draw. This crate
//! knows nothing about the measured data. Called by the reports of `klad-bench` and `klad-lab`, and by `klad-server`
//! for a page without charts. The console of `klad-server` uses uPlot and the colours; `xtask` uses `numbers`.

mod charts;
pub mod numbers;
pub mod parts;

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

pub use charts::{Axis, Band, Chart, Colour, HeatMap, Mark, Rule, Scale, Series, Style, Unit};

/// uPlot, the chart library: see `vendor/README.md`.
pub const UPLOT: &str = include_str!("vendor/uPlot.iife.min.js");
/// The style of uPlot's charts.
pub const UPLOT_STYLE: &str = include_str!("vendor/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("vendor/LICENSE");

/// The colours, as custom properties of CSS. The console uses them too.
pub const COLOURS: &str = include_str!("colours.css");

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The content security policy: the browser fetches nothing, whatever the page contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// The policy of a page without charts, which runs no scripts either.
pub const STATIC_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page, built from top to bottom.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// Returns an empty page. The browser's tab shows `title`.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), body: String::new() }
    }

    /// Appends a part: markup, a [`Chart`] or a [`HeatMap`].
    #[must_use]
    pub fn with(mut self, part: impl Render) -> Page {
        part.render_to(&mut self.body);
        self
    }

    /// Appends a section with a heading.
    #[must_use]
    pub fn section(self, heading: &str, content: &Markup) -> Page {
        self.with(html! { section { h2 { (heading) } (content) } })
    }

    /// Returns the content of the HTML file.
    #[must_use]
    pub fn into_html(self) -> String {
        let page = html! {
            (DOCTYPE)
            (licences())
            html lang="en" {
                (head(&self.title, POLICY, UPLOT_STYLE))
                body {
                    main {
                        noscript { (parts::banner(parts::Tone::Warning, "The charts need JavaScript", &[
                            "JavaScript is disabled here. The tables are complete.".to_owned(),
                        ])) }
                        (PreEscaped(&self.body))
                    }
                    script { (PreEscaped(UPLOT)) }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string()
    }

    /// Returns the content of the HTML file of a page without charts. It contains no script.
    #[must_use]
    pub fn into_static_html(self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (head(&self.title, STATIC_POLICY, ""))
                body { main { (PreEscaped(&self.body)) } }
            }
        };
        page.into_string()
    }
}

fn head(title: &str, policy: &str, more_style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(policy);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            link rel="icon" href="data:,";
            title { (title) }
            style { (PreEscaped(more_style)) (PreEscaped(COLOURS)) (PreEscaped(STYLE)) }
        }
    }
}

/// Returns an HTML comment with uPlot's licence. Each page contains a copy of uPlot, and each copy needs the licence.
fn licences() -> Markup {
    let introduction = "The charts use uPlot 1.6.32, unchanged, under this licence:";
    PreEscaped(format!("<!--\n{introduction}\n\n{UPLOT_LICENCE}\n-->\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a description of each thing in the page that could make a browser fetch something.
    fn faults(page: &str) -> Vec<String> {
        let mut faults = Vec::new();
        for word in ["src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon"] {
            if page.contains(word) {
                faults.push(format!("{word} is in the page"));
            }
        }
        for link in page.split("href=\"").skip(1) {
            if !link.starts_with("data:") && !link.starts_with('#') {
                faults.push(format!("a link to {}", link.chars().take(20).collect::<String>()));
            }
        }
        faults
    }

    #[test]
    fn a_page_fetches_nothing_and_contains_the_licence_of_uplot() {
        let page = Page::new("title").into_html();
        assert_eq!(faults(&page), Vec::<String>::new());
        assert!(page.contains("(v1.6.32)"), "the comment must name the version of uPlot");
        assert!(page.contains("Permission is hereby granted, free of charge"));
        assert!(page.contains("default-src 'none'"));
        // Each text is inside an element or a comment, and must not end it.
        assert!(!UPLOT_LICENCE.contains("--") && !UPLOT.contains("</") && !SCRIPT.contains("</"));
        assert!(!UPLOT_STYLE.contains("</") && !STYLE.contains("</"));
    }

    #[test]
    fn a_page_without_charts_contains_no_script() {
        let page = Page::new("title").section("heading", &html! { p { "text" } }).into_static_html();
        assert_eq!(faults(&page), Vec::<String>::new());
        assert!(!page.contains("<script") && page.contains("default-src 'none'") && page.contains("heading"));
    }

    #[test]
    fn twin_a_page_that_fetches_is_noticed() {
        for part in ["<img src=\"http://h/\">", "<link href=\"https://h/\">", "<style>@import 'http://h';</style>"] {
            assert_eq!(faults(&Page::new("title").with(PreEscaped(part)).into_html()).len(), 1, "{part}");
        }
    }

    #[test]
    fn titles_and_parts_are_escaped() {
        let markup = "</title><script>alert(1)</script>";
        let cells = vec![vec![parts::Cell::from(markup)]];
        let tile = parts::Tile { name: markup.into(), value: markup.into(), note: markup.into(), ..Default::default() };
        let page = Page::new(markup)
            .section(markup, &parts::table(markup, &[parts::Column::Words("a")], &cells))
            .with(parts::tiles(&[tile]))
            .with(parts::facts(&[("fact", markup.into())]))
            .with(parts::banner(parts::Tone::Bad, markup, &[markup.into()]))
            .into_html();
        let empty = Page::new("title").into_html();
        assert_eq!(page.matches("<script").count(), empty.matches("<script").count());
        assert_eq!(page.matches("</title>").count(), 1);
    }
}
