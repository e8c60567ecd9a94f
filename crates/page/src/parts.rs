//! Parts of a page that are not drawn: banners, key figures, tables, facts. What depends on a colour also has a sign or a
//! word. Called by whoever makes a page.

use maud::{Markup, html};

/// How something is to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// It is well.
    Good,
    /// To be known.
    Warning,
    /// It is not well.
    Bad,
}

impl Tone {
    /// Of what holds or does not.
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

/// A verdict: a word, and sentences that say why.
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
    /// What it is.
    pub name: String,
    /// The figure with its unit.
    pub value: String,
    /// What belongs to it, in a few words.
    pub note: String,
    /// Good is shown as plain: only what needs a look has a colour.
    pub tone: Tone,
}

/// Key figures, side by side as far as there is room.
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

/// Names with what they stand for.
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
    /// With a tone, whose sign stands before it.
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
    /// Words, from the left.
    Words(&'static str),
    /// Figures, digit below digit.
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

/// A table in a box of its own, which is scrolled where the screen is narrower; the first column names the row.
#[must_use]
pub fn table(title: &str, columns: &[Column], rows: &[Vec<Cell>]) -> Markup {
    assert!(rows.iter().all(|row| row.len() == columns.len()), "{title}: a cell for each column");
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
