//! Pages that need nothing but themselves: one HTML file with its charts, readable from a disk without a network, on a phone
//! and on a wide screen, in light and dark.
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
//! It must never fetch anything, never lose a chart without a word, and never know what is measured: that is for its
//! callers, `bench::page` first.

mod charts;
pub mod numbers;
pub mod parts;

use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

pub use charts::{Axis, Band, Chart, Colour, HeatMap, Mark, Rule, Scale, Series, Style, Unit};

/// Drawing: see `vendor/README.md`.
const UPLOT: &str = include_str!("vendor/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("vendor/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("vendor/LICENSE");

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The browser fetches nothing, whatever stands in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A page that is put together from above.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// Without content; `title` is for the browser's tab.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), body: String::new() }
    }

    /// One more part, at its end: markup, a [`Chart`], a [`HeatMap`].
    #[must_use]
    pub fn with(mut self, part: impl Render) -> Page {
        part.render_to(&mut self.body);
        self
    }

    /// A part with a heading.
    #[must_use]
    pub fn section(self, heading: &str, content: &Markup) -> Page {
        self.with(html! { section { h2 { (heading) } (content) } })
    }

    /// The file.
    #[must_use]
    pub fn into_html(self) -> String {
        let page = html! {
            (DOCTYPE)
            (licences())
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    link rel="icon" href="data:,";
                    title { (self.title) }
                    style { (PreEscaped(UPLOT_STYLE)) (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        noscript { (parts::banner(parts::Tone::Warning, "The charts need scripts", &[
                            "Scripts are off in this browser, or for this file. The tables are complete.".to_owned(),
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
}

/// uPlot's licence asks for its text in every copy.
fn licences() -> Markup {
    html! { (PreEscaped("<!--\nThe charts are drawn by uPlot 1.6.32, unchanged, under this licence:\n\n")) (PreEscaped(UPLOT_LICENCE)) (PreEscaped("\n-->\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What of a page would leave its place.
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
    fn a_page_fetches_nothing_and_holds_the_licence_of_what_it_holds() {
        let page = Page::new("title").into_html();
        assert_eq!(faults(&page), Vec::<String>::new());
        assert!(page.contains("(v1.6.32)"), "the version that the comment names is the one that is there");
        assert!(page.contains("Permission is hereby granted, free of charge"));
        assert!(page.contains("default-src 'none'"));
        // Each of them stands in an element or a comment that it must not end.
        assert!(!UPLOT_LICENCE.contains("--") && !UPLOT.contains("</") && !SCRIPT.contains("</"));
        assert!(!UPLOT_STYLE.contains("</") && !STYLE.contains("</"));
    }

    #[test]
    fn twin_a_page_that_fetches_is_noticed() {
        for part in ["<img src=\"http://h/\">", "<link href=\"https://h/\">", "<style>@import 'http://h';</style>"] {
            assert_eq!(faults(&Page::new("title").with(PreEscaped(part)).into_html()).len(), 1, "{part}");
        }
    }

    #[test]
    fn titles_and_parts_are_text_and_no_markup() {
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
