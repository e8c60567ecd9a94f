//! Charts as data, which `page.js` draws. A chart is a `figure` element of the page that contains its data as JSON.
//!
//! In the JSON, the values of lines are finite or `null`, never NaN. Values have five significant digits, more than a
//! chart can show. This module knows nothing about the measured data. Called by all code that makes pages.

use maud::{Markup, PreEscaped, Render, html};
use serde::{Serialize, Serializer};

/// A chart of lines over a common x axis.
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

/// A map of counts over x and y. The colour follows the logarithm of the count.
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

/// The texts around a chart.
#[derive(Clone, Debug)]
struct Frame {
    id: String,
    title: String,
    caption: String,
}

/// An axis.
#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    /// How values map to positions.
    pub scale: Scale,
    /// The unit of the values.
    pub unit: Unit,
    /// The ends of the axis in its unit. `None`: the axis covers all values, as described at [`Axis::linear`].
    pub range: Option<[f64; 2]>,
    /// Whether the reader can switch a y axis between linear and logarithmic. An x axis has no switch.
    pub switch: bool,
}

/// How values map to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Scale {
    /// A linear scale.
    Linear,
    /// A logarithmic scale. 0 is drawn at the bottom of the axis with the label 0. Negative values are not drawn.
    Log,
    /// `HdrHistogram`'s percentile scale. The value is 1 ÷ (1 − quantile), at least 1, and its logarithm is the
    /// position. There are ticks at 0 %, 90 %, 99 % and so on, as far as they have space. A value above the number of
    /// samples is labelled `max`.
    Percentile {
        /// The number of samples.
        samples: u64,
    },
}

/// The unit of the values, for ticks and values at the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds since the start. If the visible range is above two minutes, times are shown as `m:ss`, and from an hour
    /// on as `h:mm:ss`.
    Elapsed,
    /// Microseconds, shown in ns, µs, ms or s.
    Micros,
    /// A rate per second.
    PerSecond,
    /// A whole number.
    Count,
    /// A percentage, 0 to 100.
    Percent,
    /// A number without a unit.
    Plain,
}

/// A line of a chart.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// A colour of the palette in `colours.css`.
    pub colour: Colour,
    /// The style of the line.
    pub style: Style,
    /// The index of the first value that only few samples support. From this value on, the line is dashed and shows its
    /// points.
    pub weak_from: Option<usize>,
    /// A value or `None` for each x.
    #[serde(serialize_with = "values")]
    pub values: Vec<Option<f64>>,
}

/// A colour of the palette in `colours.css`. Colour-blind readers can distinguish the colours too, in light and dark
/// schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Colour {
    /// The first colour.
    Blue,
    /// The second colour, in contrast to blue.
    Orange,
    /// Good values.
    Green,
    /// Bad values.
    Red,
    /// The third colour.
    Purple,
    /// The fourth colour.
    Yellow,
    /// Values in the background.
    Grey,
    /// The lowest of five ordered colours, from light to dark (in a dark scheme, from dark to light).
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

/// The style of a series. In every style, a value between two gaps is drawn as a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// A line with a tinted area below it.
    Area,
    /// Points without a line.
    Points,
    /// A thin line without values at the cursor. Adjacent thin series with the same name share one key in the legend.
    Thin,
}

/// A highlighted range of x.
#[derive(Clone, Debug, Serialize)]
pub struct Band {
    /// The start, in the unit of x.
    pub from: f64,
    /// The end, in the unit of x.
    pub to: f64,
    /// The label in the legend.
    pub label: String,
}

/// A marked position on x.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// The position, in the unit of x.
    pub at: f64,
    /// The label beside the mark. It is left out if it does not fit.
    pub label: String,
}

/// A reference value on y.
#[derive(Clone, Debug, Serialize)]
pub struct Rule {
    /// The value, in the unit of y.
    pub at: f64,
    /// The label at the end of the reference line.
    pub label: String,
}

/// A column of a heat map: the index of the first bucket with a count above 0, and the counts from there to the last
/// such bucket.
#[derive(Clone, Debug, Serialize)]
struct HeatColumn(usize, Vec<u64>);

impl Axis {
    /// Returns a linear axis. As an x axis it reaches from the lowest to the highest position. As the y axis of a
    /// [`Chart`] it begins at 0, or 5 % below the lowest value if that is negative, and ends 5 % above the highest
    /// value, or at 1 if no value is positive. As the y axis of a [`HeatMap`] it reaches from the first edge to the
    /// last.
    #[must_use]
    pub fn linear(unit: Unit) -> Axis {
        Axis { scale: Scale::Linear, unit, range: None, switch: false }
    }

    /// Returns a logarithmic axis.
    #[must_use]
    pub fn log(unit: Unit) -> Axis {
        Axis { scale: Scale::Log, ..Axis::linear(unit) }
    }

    /// Returns an axis of seconds from `from` to `to`.
    #[must_use]
    pub fn time(from: f64, to: f64) -> Axis {
        Axis { range: Some([from, to]), ..Axis::linear(Unit::Elapsed) }
    }

    /// Returns an axis of quantiles of `samples` samples; see [`Scale::Percentile`].
    #[must_use]
    pub fn percentile(samples: u64) -> Axis {
        Axis { scale: Scale::Percentile { samples }, ..Axis::linear(Unit::Percent) }
    }

    /// Adds a switch between linear and logarithmic. It works only on a y axis.
    #[must_use]
    pub fn switched(self) -> Axis {
        Axis { switch: true, ..self }
    }
}

impl Series {
    /// Returns a line. `values` has one entry for each x of the chart.
    #[must_use]
    pub fn line(name: impl Into<String>, colour: Colour, values: Vec<Option<f64>>) -> Series {
        Series { name: name.into(), colour, style: Style::Line, weak_from: None, values }
    }

    /// Changes the style.
    #[must_use]
    pub fn styled(self, style: Style) -> Series {
        Series { style, ..self }
    }

    /// Sets [`Series::weak_from`].
    #[must_use]
    pub fn weak_from(self, index: Option<usize>) -> Series {
        Series { weak_from: index, ..self }
    }
}

impl Chart {
    /// Returns a chart without lines. `at` has the positions on x, ascending. `id` is unique in its page and valid in
    /// a URL fragment.
    ///
    /// # Panics
    /// If `at` does not ascend.
    #[must_use]
    pub fn new(id: &str, title: &str, x: Axis, y: Axis, at: Vec<f64>) -> Chart {
        assert!(at.is_sorted_by(|a, b| a < b), "the positions on x must ascend");
        let frame = Frame { id: id.to_owned(), title: title.to_owned(), caption: String::new() };
        Chart { frame, x, y, at, series: Vec::new(), bands: Vec::new(), marks: Vec::new(), rules: Vec::new() }
    }

    /// Sets one or two sentences below the title.
    #[must_use]
    pub fn caption(mut self, caption: impl Into<String>) -> Chart {
        self.frame.caption = caption.into();
        self
    }

    /// Adds a line on top of the earlier ones.
    ///
    /// # Panics
    /// If the line does not have an entry for each x.
    #[must_use]
    pub fn with(mut self, series: Series) -> Chart {
        assert_eq!(series.values.len(), self.at.len(), "a series needs an entry for each x");
        self.series.push(series);
        self
    }

    /// Adds highlighted ranges and marks on x.
    #[must_use]
    pub fn set_apart(mut self, bands: &[Band], marks: &[Mark]) -> Chart {
        self.bands.extend_from_slice(bands);
        self.marks.extend_from_slice(marks);
        self
    }

    /// Adds a reference value on y. The y axis extends to this value, unless the axis has a fixed range.
    #[must_use]
    pub fn rule(mut self, at: f64, label: impl Into<String>) -> Chart {
        self.rules.push(Rule { at, label: label.into() });
        self
    }
}

impl HeatMap {
    /// Returns a heat map. `x_edges` and `y_edges` ascend and are the bounds of the cells. Each of `columns` has counts
    /// for the buckets of y, the lowest bucket first. Counts that are missing at the end of a column are 0. `counted`
    /// names the counted things in the plural.
    ///
    /// # Panics
    /// If `columns` does not have one entry less than `x_edges`, or if a column has more counts than there are buckets
    /// between `y_edges`.
    #[must_use]
    pub fn new(
        id: &str,
        title: &str,
        counted: &str,
        [x, y]: [Axis; 2],
        [x_edges, y_edges]: [Vec<f64>; 2],
        columns: &[Vec<u64>],
    ) -> HeatMap {
        assert_eq!(columns.len() + 1, x_edges.len(), "each column needs two edges");
        assert!(columns.iter().all(|column| column.len() < y_edges.len()), "each bucket needs two edges");
        let frame = Frame { id: id.to_owned(), title: title.to_owned(), caption: String::new() };
        let columns = columns.iter().map(|column| HeatColumn::of(column)).collect();
        let counted = counted.to_owned();
        HeatMap { frame, x, y, counted, x_edges, y_edges, columns, bands: Vec::new(), marks: Vec::new() }
    }

    /// Sets one or two sentences below the title.
    #[must_use]
    pub fn caption(mut self, caption: impl Into<String>) -> HeatMap {
        self.frame.caption = caption.into();
        self
    }

    /// Adds highlighted ranges and marks on x.
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
                // The script removes this text. Without the script, the page must not look empty.
                div.plot { p.undrawn { "Not drawn: the script of this page has not run." } }
                script.data type="application/json" { (json(data)) }
            }
        }
    }
}

/// Serialises as JSON for a `script` element: nothing in it ends the element or begins a comment.
fn json(data: &impl Serialize) -> PreEscaped<String> {
    let json = serde_json::to_string(data).expect("text, numbers and lists of them");
    // The three characters can only occur in strings, where JSON allows these escapes.
    PreEscaped(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"))
}

/// Rounds to `digits` significant digits. Returns `None` for values that are not finite.
fn rounded(value: f64, digits: usize) -> Option<f64> {
    let text = format!("{value:.*e}", digits - 1);
    value.is_finite().then(|| text.parse().expect("a formatted number is a number"))
}

fn values<S: Serializer>(values: &[Option<f64>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.and_then(|value| rounded(value, 5))))
}

/// Serialises positions with nine significant digits, so that adjacent ones stay distinct.
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
    fn data_cannot_end_its_script_element_and_is_read_back_unchanged() {
        let name = "</script><script>alert(1)</script><!-- & \u{2028} '\"";
        let page = chart(name).render().into_string();
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert_eq!(page.matches("</script").count(), 1, "{page}");
        assert!(!page.contains("<!--"), "{page}");
        let data = page.split("application/json\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: serde_json::Value = serde_json::from_str(data.expect("the page has data")).expect("JSON");
        assert_eq!(data["series"][0]["name"], name);
    }

    #[test]
    fn twin_data_without_escapes_ends_its_script_element() {
        let data = serde_json::to_string(&chart("</script><script>alert(1)</script>")).expect("JSON");
        assert_eq!(data.matches("<script").count(), 1);
    }

    #[test]
    fn nan_values_become_null() {
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
