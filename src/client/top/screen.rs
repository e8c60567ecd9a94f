//! Draws a view on the terminal. Called by `top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Paragraph, Row, Table as Grid};

use crate::client::top::views::{Look, Table, VIEWS};

/// From this width on, in characters, tables are in two columns.
const TWO_COLUMNS: u16 = 100;

/// What to draw.
pub(super) struct Screen<'a> {
    /// The first line: the server and its state.
    pub(super) status: &'a str,
    /// Whether the status is bad news.
    pub(super) is_bad: bool,
    pub(super) view: usize,
    pub(super) tables: &'a [Table],
    pub(super) shows_help: bool,
    /// `false`: only bold and inverse, as `NO_COLOR` asks for.
    pub(super) colours: bool,
}

const HELP: &str = "\
1 2 3   choose a view: Now, Requests, Storage
Tab     next view
p       pause and continue
?       show or hide this help
q       quit

Rates and percentiles cover the last ten seconds. Latencies of \"all\" and of
phases do not include change feeds, which last as long as their clients want.
Marked lines need attention: failed or rejected requests, a queue that is half
full, a write stall. docs/operations.md says what to do.";

impl Screen<'_> {
    /// Draws the whole screen.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [top, middle, bottom] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let status = if self.is_bad { self.bad() } else { Style::new().bold() };
        frame.render_widget(Line::styled(self.status, status), top);
        if self.shows_help {
            frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title("Help")), middle);
        } else {
            self.draw_tables(frame, middle);
        }
        let names = VIEWS.iter().enumerate().map(|(number, (key, name))| {
            if number == self.view { format!("[{key} {name}]") } else { format!(" {key} {name} ") }
        });
        let keys = format!("{}  p pause  ? help  q quit", names.collect::<String>());
        frame.render_widget(Line::styled(keys, Style::new().reversed()), bottom);
    }

    /// Fills the columns from the left; what has no room is not shown.
    fn draw_tables(&self, frame: &mut Frame<'_>, area: Rect) {
        let columns = if area.width >= TWO_COLUMNS { 2 } else { 1 };
        let areas = Layout::horizontal(vec![Constraint::Fill(1); columns]).spacing(2).split(area);
        let heights: Vec<u16> = self.tables.iter().map(height).collect();
        let half = heights.iter().sum::<u16>().div_ceil(u16::try_from(columns).expect("one or two"));
        let (mut column, mut y) = (0, 0);
        for (table, height) in self.tables.iter().zip(heights) {
            if y > 0 && y + height > half && column + 1 < columns {
                (column, y) = (column + 1, 0);
            }
            let place = Rect { y: area.y.saturating_add(y), height, ..areas[column] };
            self.draw_table(frame, table, place.intersection(area));
            y += height;
        }
    }

    fn draw_table(&self, frame: &mut Frame<'_>, table: &Table, area: Rect) {
        if area.height < 2 {
            return;
        }
        let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        frame.render_widget(Line::styled(table.title, Style::new().bold().underlined()), title);
        let width = |width: usize| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX));
        let others = table.widths().into_iter().skip(1).map(width);
        let widths: Vec<Constraint> = std::iter::once(Constraint::Fill(1)).chain(others).collect();
        let cells = |row: &[String]| {
            let cell = |(position, cell): (usize, &String)| {
                let text = Text::raw(cell.clone());
                if position == 0 { text } else { text.right_aligned() }
            };
            row.iter().enumerate().map(cell).collect::<Vec<_>>()
        };
        let rows = table.rows.iter().map(|(look, row)| {
            let style = if *look == Look::Bad { self.bad() } else { Style::new() };
            Row::new(cells(row)).style(style)
        });
        let rows: Vec<Row<'_>> = if table.rows.is_empty() { vec![Row::new(["none"])] } else { rows.collect() };
        let mut grid = Grid::new(rows, widths).column_spacing(2);
        if !table.head.is_empty() && !table.rows.is_empty() {
            let head: Vec<String> = table.head.iter().map(|word| (*word).to_owned()).collect();
            grid = grid.header(Row::new(cells(&head)).style(Style::new().dim()));
        }
        frame.render_widget(grid, body);
    }

    fn bad(&self) -> Style {
        if self.colours { Style::new().fg(Color::Red).bold() } else { Style::new().bold().reversed() }
    }
}

/// Returns the number of lines of a table: title, head, rows, and an empty line.
fn height(table: &Table) -> u16 {
    let head = usize::from(!table.head.is_empty() && !table.rows.is_empty());
    u16::try_from(1 + head + table.rows.len().max(1) + 1).unwrap_or(u16::MAX)
}
