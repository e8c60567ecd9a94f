//! The parts of a page that are not charts: banners, key figures, bars, tables, facts. Banners and cells of tables show
//! their rating by a colour and a sign, key figures only by a colour. Called by all code that makes pages.

use maud::{Markup, html};

/// The rating of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// No rating.
    #[default]
    Plain,
    /// Good.
    Good,
    /// Worth knowing.
    Warning,
    /// Bad.
    Bad,
}

impl Tone {
    /// Returns `Good` if `well`, otherwise `Bad`.
    #[must_use]
    pub fn of(well: bool) -> Tone {
        if well { Tone::Good } else { Tone::Bad }
    }

    fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Warning => "warning",
            Tone::Bad => "bad",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Good => "✓",
            Tone::Warning => "!",
            Tone::Bad => "✕",
        }
    }
}

/// Returns a banner: a word, and sentences that explain it.
#[must_use]
pub fn banner(tone: Tone, word: &str, sentences: &[String]) -> Markup {
    html! {
        div.banner.(tone.class()) {
            span.sign aria-hidden="true" { (tone.sign()) }
            div {
                strong { (word) }
                @for sentence in sentences { p { (sentence) } }
            }
        }
    }
}

/// A key figure.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// The name of the figure.
    pub name: String,
    /// The figure with its unit.
    pub value: String,
    /// A note of a few words below the figure, or empty.
    pub note: String,
    /// The rating. `Good` looks like `Plain`, so that only figures that need attention have a colour.
    pub tone: Tone,
}

/// Returns the key figures side by side, as many per row as fit.
#[must_use]
pub fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        dl.tiles {
            @for tile in tiles {
                div.(tile.tone.class()) {
                    dt { (tile.name) }
                    dd { (tile.value) }
                    @if !tile.note.is_empty() { dd.note { (tile.note) } }
                }
            }
        }
    }
}

/// A bar of a picture that needs no script.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// The name before the bar.
    pub name: String,
    /// The length, 0 to 1.
    pub share: f64,
    /// The value behind the bar.
    pub value: String,
    /// A note behind the value, or empty.
    pub note: String,
    /// Whether the bar stands out.
    pub best: bool,
}

/// Returns horizontal bars with a title, and with a caption unless `caption` is empty.
#[must_use]
pub fn bars(title: &str, caption: &str, bars: &[Bar]) -> Markup {
    html! {
        figure.bars {
            figcaption { h3 { (title) } @if !caption.is_empty() { p { (caption) } } }
            dl {
                @for bar in bars {
                    div.best[bar.best] {
                        dt { (bar.name) }
                        dd.track aria-hidden="true" { span style=(width(bar)) {} }
                        dd.value { (bar.value) @if !bar.note.is_empty() { " " span { (bar.note) } } }
                    }
                }
            }
        }
    }
}

fn width(bar: &Bar) -> String {
    format!("width: {:.1}%", bar.share.clamp(0.0, 1.0) * 100.0)
}

/// Returns a list of names and values.
#[must_use]
pub fn facts(facts: &[(&str, String)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Returns a cell with a rating, whose sign comes before the text.
    #[must_use]
    pub fn toned(tone: Tone, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// Left-aligned text.
    Words(&'static str),
    /// Right-aligned figures.
    Figures(&'static str),
}

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Words(name) | Column::Figures(name) => name,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Column::Words(_) => "words",
            Column::Figures(_) => "figures",
        }
    }
}

/// Returns a table that scrolls sideways on a narrow screen. The first column names the row.
///
/// # Panics
/// If a row does not have one cell for each column.
#[must_use]
pub fn table(title: &str, columns: &[Column], rows: &[Vec<Cell>]) -> Markup {
    assert!(rows.iter().all(|row| row.len() == columns.len()), "{title}: each row needs one cell for each column");
    html! {
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table {
                thead { tr { @for column in columns { th.(column.class()) scope="col" { (column.name()) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (index, (column, cell)) in columns.iter().zip(row).enumerate() {
                                @if index == 0 {
                                    th.(column.class()).(cell.tone.class()) scope="row" { (content(cell)) }
                                } @else {
                                    td.(column.class()).(cell.tone.class()) { (content(cell)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn content(cell: &Cell) -> Markup {
    html! {
        @if !cell.tone.sign().is_empty() { span.sign aria-hidden="true" { (cell.tone.sign()) } " " }
        (cell.text)
    }
}
