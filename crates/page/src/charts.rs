//! Charts as data: what `page.js` draws. A chart is a figure of the page, with its data as JSON inside.
//!
//! Values are finite or absent, never NaN; they are written with five significant digits, which is more than an eye can see.
//! Nothing here knows what is measured. Called by whoever makes a page.

use maud::{Markup, PreEscaped, Render, html};
use serde::{Serialize, Serializer};

/// Lines over a common x.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    #[serde(skip)]
    frame: Frame,
    x: Axis,
    y: Axis,
    #[serde(serialize_with = "places")]
    at: Vec<f64>,
    series: Vec<Series>,
    bands: Vec<Band>,
    marks: Vec<Mark>,
    rules: Vec<Rule>,
}

/// Counts over x and y, as colours; the colour follows the logarithm of the count.
#[derive(Clone, Debug, Serialize)]
pub struct HeatMap {
    #[serde(skip)]
    frame: Frame,
    x: Axis,
    y: Axis,
    counted: String,
    #[serde(serialize_with = "places")]
    x_edges: Vec<f64>,
    #[serde(serialize_with = "places")]
    y_edges: Vec<f64>,
    columns: Vec<HeatColumn>,
    bands: Vec<Band>,
    marks: Vec<Mark>,
}

/// What stands around a drawing.
#[derive(Clone, Debug)]
struct Frame {
    id: String,
    title: String,
    caption: String,
}

/// One axis.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// How values become places.
    pub scale: Scale,
    /// What values are.
    pub unit: Unit,
    /// From and to, in the unit; `None`: as the values are, a linear y from 0.
    pub range: Option<[f64; 2]>,
    /// Whether the reader may choose between linear and logarithmic.
    pub switch: bool,
}

/// How values become places on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers of ten; 0 is drawn at the foot of the axis and says so there, what is below 0 is not drawn.
    Log,
    /// `HdrHistogram`'s: the value is 1 ÷ (1 − quantile), at least 1, and its logarithm is the place; ticks say 0 %, 90 %,
    /// 99 % and so on. What lies beyond `samples`, the number of samples, is the maximum.
    Percentile {
        /// Samples that the quantiles are of.
        samples: u64,
    },
}

/// What values are, for ticks and read-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds since the beginning, as `h:mm:ss` where it is long.
    Elapsed,
    /// Microseconds; shown in ns, µs, ms or s.
    Micros,
    /// Per second.
    PerSecond,
    /// A whole number.
    Count,
    /// 0 to 100.
    Percent,
    /// A number without a unit.
    Plain,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// One of the palette of `page.css`.
    pub colour: Colour,
    /// How it is drawn.
    pub style: Style,
    /// From this index on it rests on little, and is drawn dashed with its points.
    pub weak_from: Option<usize>,
    /// A value for each x, or none.
    #[serde(serialize_with = "values")]
    pub values: Vec<Option<f64>>,
}

/// Colours that are told apart in light and dark, and by colour-blind readers; `page.css` says what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Colour {
    /// The first choice.
    Blue,
    /// Against blue.
    Orange,
    /// What is well.
    Green,
    /// What is not.
    Red,
    /// A third.
    Purple,
    /// A fourth.
    Yellow,
    /// Beside the point.
    Grey,
    /// The lowest of an ordered five; they grow darker (in the dark: lighter).
    Step1,
    /// The second of five.
    Step2,
    /// The third of five.
    Step3,
    /// The fourth of five.
    Step4,
    /// The highest of five.
    Step5,
}

/// How a series is drawn. A value between two gaps is a point in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// A line over a tinted area.
    Area,
    /// Points alone.
    Points,
    /// A thin line without values at the cursor. Neighbours of one name have one key in the legend.
    Thin,
}

/// A part of x that is set apart.
#[derive(Clone, Debug, Serialize)]
pub struct Band {
    /// Where it begins, in the unit of x.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Stands in it where there is room.
    pub label: String,
}

/// A place on x.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// Where, in the unit of x.
    pub at: f64,
    /// Stands beside it where there is room.
    pub label: String,
}

/// A value on y that others are held against.
#[derive(Clone, Debug, Serialize)]
pub struct Rule {
    /// Where, in the unit of y.
    pub at: f64,
    /// Stands at its end.
    pub label: String,
}

/// One column of a heat map: counts from the bucket `from` upwards, those of 0 at its ends left out.
#[derive(Clone, Debug, Serialize)]
struct HeatColumn(usize, Vec<u64>);

impl Axis {
    /// From the lowest value, or from 0 upwards for a y, to the highest.
    #[must_use]
    pub fn linear(unit: Unit) -> Axis {
        Axis { scale: Scale::Linear, unit, range: None, switch: false }
    }

    /// By powers of ten.
    #[must_use]
    pub fn log(unit: Unit) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(unit) }
    }

    /// Seconds from `from` to `to`.
    #[must_use]
    pub fn time(from: f64, to: f64) -> Axis {
        Axis { range: Some([from, to]), ..Axis::linear(Unit::Elapsed) }
    }

    /// Quantiles of so many samples; see [`Scale::Percentile`].
    #[must_use]
    pub fn percentile(samples: u64) -> Axis {
        Axis { scale: Scale::Percentile { samples }, ..Axis::linear(Unit::Percent) }
    }

    /// With a switch between linear and logarithmic.
    #[must_use]
    pub fn switched(self) -> Axis {
        Axis { switch: true, ..self }
    }
}

impl Series {
    /// A line; `values` has as many as the chart has places on x.
    #[must_use]
    pub fn line(name: impl Into<String>, colour: Colour, values: Vec<Option<f64>>) -> Series {
        Series { name: name.into(), colour, style: Style::Line, weak_from: None, values }
    }

    /// In another style.
    #[must_use]
    pub fn styled(self, style: Style) -> Series {
        Series { style, ..self }
    }

    /// Dashed from this index on; see [`Series::weak_from`].
    #[must_use]
    pub fn weak_from(self, index: Option<usize>) -> Series {
        Series { weak_from: index, ..self }
    }
}

impl Chart {
    /// With places on x, which ascend, and no line yet. `id` is unique in its page, a name as in a URL.
    #[must_use]
    pub fn new(id: &str, title: &str, x: Axis, y: Axis, at: Vec<f64>) -> Chart {
        assert!(at.is_sorted_by(|a, b| a < b), "places on x ascend");
        let frame = Frame { id: id.to_owned(), title: title.to_owned(), caption: String::new() };
        Chart { frame, x, y, at, series: Vec::new(), bands: Vec::new(), marks: Vec::new(), rules: Vec::new() }
    }

    /// A sentence or two below the title.
    #[must_use]
    pub fn caption(mut self, caption: impl Into<String>) -> Chart {
        self.frame.caption = caption.into();
        self
    }

    /// One more line, drawn over those before.
    #[must_use]
    pub fn with(mut self, series: Series) -> Chart {
        assert_eq!(series.values.len(), self.at.len(), "a value or none for each x");
        self.series.push(series);
        self
    }

    /// Parts and places of x.
    #[must_use]
    pub fn set_apart(mut self, bands: &[Band], marks: &[Mark]) -> Chart {
        self.bands.extend_from_slice(bands);
        self.marks.extend_from_slice(marks);
        self
    }

    /// A value that the lines are held against; the y axis reaches it.
    #[must_use]
    pub fn rule(mut self, at: f64, label: impl Into<String>) -> Chart {
        self.rules.push(Rule { at, label: label.into() });
        self
    }
}

impl HeatMap {
    /// `x_edges` and `y_edges` ascend and bound `columns`, each of which has a count for each bucket of y, from the lowest;
    /// `counted` says what is counted, in the plural.
    #[must_use]
    pub fn new(
        id: &str,
        title: &str,
        counted: &str,
        [x, y]: [Axis; 2],
        [x_edges, y_edges]: [Vec<f64>; 2],
        columns: &[Vec<u64>],
    ) -> HeatMap {
        assert_eq!(columns.len() + 1, x_edges.len(), "columns lie between edges");
        assert!(columns.iter().all(|column| column.len() < y_edges.len()), "buckets lie between edges");
        let frame = Frame { id: id.to_owned(), title: title.to_owned(), caption: String::new() };
        let columns = columns.iter().map(|column| HeatColumn::of(column)).collect();
        let counted = counted.to_owned();
        HeatMap { frame, x, y, counted, x_edges, y_edges, columns, bands: Vec::new(), marks: Vec::new() }
    }

    /// A sentence or two below the title.
    #[must_use]
    pub fn caption(mut self, caption: impl Into<String>) -> HeatMap {
        self.frame.caption = caption.into();
        self
    }

    /// Parts and places of x.
    #[must_use]
    pub fn set_apart(mut self, bands: &[Band], marks: &[Mark]) -> HeatMap {
        self.bands.extend_from_slice(bands);
        self.marks.extend_from_slice(marks);
        self
    }
}

impl HeatColumn {
    fn of(counts: &[u64]) -> HeatColumn {
        let first = counts.iter().position(|count| *count > 0).unwrap_or(counts.len());
        let last = counts.iter().rposition(|count| *count > 0).map_or(first, |last| last + 1);
        HeatColumn(first, counts[first..last].to_vec())
    }
}

impl Render for Chart {
    fn render(&self) -> Markup {
        self.frame.around("lines", self)
    }
}

impl Render for HeatMap {
    fn render(&self) -> Markup {
        self.frame.around("heat", self)
    }
}

impl Frame {
    fn around(&self, kind: &str, data: &impl Serialize) -> Markup {
        html! {
            figure.chart id=(self.id) data-kind=(kind) {
                figcaption {
                    h3 { (self.title) }
                    div.switch {}
                    @if !self.caption.is_empty() { p { (self.caption) } }
                }
                div.legend {}
                // Stands there until the script takes it away: a page whose script was lost must not look empty.
                div.plot { p.undrawn { "Not drawn: the script of this page has not run." } }
                script.data type="application/json" { (json(data)) }
            }
        }
    }
}

/// JSON that can stand in a `script` element: nothing in it ends the element or begins a comment.
fn json(data: &impl Serialize) -> PreEscaped<String> {
    let json = serde_json::to_string(data).expect("text, numbers and lists of them");
    // All three stand within strings only, where JSON has another way to write them.
    PreEscaped(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

/// A number of so many significant digits.
fn rounded(value: f64, digits: usize) -> Option<f64> {
    let text = format!("{value:.*e}", digits - 1);
    value.is_finite().then(|| text.parse().expect("a number as it is written"))
}

fn values<S: Serializer>(values: &[Option<f64>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.and_then(|value| rounded(value, 5))))
}

/// Neighbours on x must stay apart.
fn places<S: Serializer>(places: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(places.iter().map(|place| rounded(*place, 9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(name: &str) -> Chart {
        let series = Series::line(name, Colour::Blue, vec![Some(1.0), None, Some(f64::NAN), Some(1.234_567)]);
        Chart::new("c", name, Axis::time(0.0, 4.0), Axis::log(Unit::Micros), vec![0.0, 1.0, 2.0, 3.5]).with(series)
    }

    #[test]
    fn data_cannot_break_out_of_its_script_and_is_read_back_as_it_was() {
        let name = "</script><script>alert(1)</script><!-- & \u{2028} '\"";
        let page = chart(name).render().into_string();
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert_eq!(page.matches("</script").count(), 1, "{page}");
        assert!(!page.contains("<!--"), "{page}");
        let data = page.split("application/json\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: serde_json::Value = serde_json::from_str(data.expect("there")).expect("JSON");
        assert_eq!(data["series"][0]["name"], name);
    }

    #[test]
    fn twin_data_that_is_not_escaped_breaks_out() {
        let data = serde_json::to_string(&chart("</script><script>alert(1)</script>")).expect("JSON");
        assert_eq!(data.matches("<script").count(), 1);
    }

    #[test]
    fn what_is_no_number_is_absent() {
        let data = serde_json::to_value(chart("name")).expect("JSON");
        assert_eq!(data["series"][0]["values"], serde_json::json!([1.0, null, null, 1.2346]));
        assert_eq!(data["at"], serde_json::json!([0.0, 1.0, 2.0, 3.5]));
    }

    #[test]
    fn columns_leave_out_zeros_at_their_ends_only() {
        let column = |counts: &[u64]| HeatColumn::of(counts);
        assert_eq!(serde_json::to_value(column(&[0, 0, 3, 0, 4, 0])).expect("JSON"), serde_json::json!([2, [3, 0, 4]]));
        assert_eq!(serde_json::to_value(column(&[0, 0])).expect("JSON"), serde_json::json!([2, []]));
    }
}
