//! A table that can be written as HTML and as Markdown. Called by `tables`.

use std::fmt::Write as _;

use maud::Markup;

use klad_page::parts::{self, Column, Tone};

/// A table.
#[derive(Debug)]
pub(super) struct Grid {
    /// The label for screen readers.
    pub(super) title: &'static str,
    /// The first column names the row.
    pub(super) columns: Vec<Column>,
    /// Each row has as many cells as there are columns.
    pub(super) rows: Vec<Vec<Entry>>,
    /// Sentences below the table.
    pub(super) notes: Vec<String>,
}

/// A cell.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    tone: Tone,
    text: String,
}

impl Entry {
    pub(super) fn toned(tone: Tone, text: impl Into<String>) -> Entry {
        Entry { tone, text: text.into() }
    }
}

impl<T: Into<String>> From<T> for Entry {
    fn from(text: T) -> Entry {
        Entry::toned(Tone::Plain, text)
    }
}

impl Grid {
    pub(super) fn new(title: &'static str, columns: &[Column]) -> Grid {
        Grid { title, columns: columns.to_vec(), rows: Vec::new(), notes: Vec::new() }
    }

    pub(super) fn html(&self) -> Markup {
        let cells =
            |row: &Vec<Entry>| row.iter().map(|entry| parts::Cell::toned(entry.tone, entry.text.as_str())).collect();
        let rows: Vec<_> = self.rows.iter().map(cells).collect();
        maud::html! {
            (parts::table(self.title, &self.columns, &rows))
            @for note in &self.notes { p { (note) } }
        }
    }

    pub(super) fn markdown(&self) -> String {
        let mut text = String::new();
        let names = self.columns.iter().map(|column| match column {
            Column::Words(name) | Column::Figures(name) => *name,
        });
        let rules = self.columns.iter().map(|column| match column {
            Column::Words(_) => "---",
            Column::Figures(_) => "---:",
        });
        let _ = writeln!(text, "| {} |", names.collect::<Vec<_>>().join(" | "));
        let _ = writeln!(text, "|{}|", rules.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            let cells: Vec<_> = row.iter().map(|entry| escaped(&entry.text)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        for note in &self.notes {
            let _ = write!(text, "\n{}\n", escaped(note));
        }
        text
    }
}

/// Escapes the characters that Markdown would interpret.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\u{a0}' | '\n' => escaped.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '~' => {
                escaped.push('\\');
                escaped.push(letter);
            }
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_escaped() {
        let mut grid = Grid::new("t", &[Column::Words("a"), Column::Figures("b")]);
        grid.rows.push(vec!["x|y".into(), Entry::toned(Tone::Bad, "<b>*1*\u{a0}ms")]);
        grid.notes.push("* a note".to_owned());
        let expected = "| a | b |\n|---|---:|\n| x\\|y | &lt;b&gt;\\*1\\* ms |\n\n\\* a note\n";
        assert_eq!(grid.markdown(), expected);
        let html = grid.html().into_string();
        assert!(html.contains("&lt;b&gt;") && !html.contains("<b>*"), "{html}");
    }
}
