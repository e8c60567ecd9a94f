//! Flame graphs, drawn by inferno.
//!
//! ```text
//!   Profile ──▶ lines of stacks ──inferno──▶ SVG ──▶ alone, or in a page with the facts and a search field
//! ```
//!
//! A flame graph always says what it shows and how it was taken, even if it has no samples. Called by the admin
//! listener of `klad-server`, and by code that reads profiles from files.

use std::collections::HashMap;
use std::fmt::Write as _;

use inferno::differential;
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options};

use crate::{Error, Name, Profile, ValueType};

/// Returns the flame graph of a profile as a self-contained HTML page with the facts and a search field. The page suits
/// light and dark colour schemes, and wide and narrow screens.
#[must_use]
pub fn flame_graph(profile: &Profile<Name>) -> String {
    page(&profile.title, &[("", profile)], COLOURS, drawn(profile).as_deref())
}

/// Returns the flame graph of a profile as an SVG. Its subtitle has the facts that fit in a line, and a comment in the
/// file has all of them. Without samples, the SVG shows the title and all facts as text.
#[must_use]
pub fn svg(profile: &Profile<Name>) -> String {
    drawn(profile).unwrap_or_else(|| empty_svg(&profile.title, &facts_line(profile)))
}

/// Returns an SVG of the difference between two profiles. `names` are the names of `before` and `after`. The widths
/// are those of `after`. With `normalise` the values of `before` are scaled to the total of `after`.
///
/// # Errors
/// [`Error::Malformed`] if the two profiles show different value types, or if with `normalise` the total of one is not
/// above 0.
pub fn difference(
    before: &Profile<Name>,
    after: &Profile<Name>,
    names: [&str; 2],
    normalise: bool,
) -> Result<String, Error> {
    let comparison = Comparison::new(before, after, names, normalise)?;
    Ok(comparison.drawn()?.unwrap_or_else(|| empty_svg(&comparison.title, &comparison.subtitle())))
}

/// Returns the difference between two profiles as an HTML page.
///
/// # Errors
/// As [`difference`].
pub fn difference_page(
    before: &Profile<Name>,
    after: &Profile<Name>,
    names: [&str; 2],
    normalise: bool,
) -> Result<String, Error> {
    let comparison = Comparison::new(before, after, names, normalise)?;
    let sides = [(names[0], before), (names[1], after)];
    Ok(page(&comparison.title, &sides, &comparison.note(), comparison.drawn()?.as_deref()))
}

/// Two profiles of one kind.
struct Comparison<'p> {
    before: &'p Profile<Name>,
    after: &'p Profile<Name>,
    names: [&'p str; 2],
    title: String,
    normalise: bool,
    /// What [`gone`] returns: a text about the stacks of the first profile that are not drawn, because the second
    /// profile does not have them.
    gone: String,
}

impl<'p> Comparison<'p> {
    fn new(
        before: &'p Profile<Name>,
        after: &'p Profile<Name>,
        names: [&'p str; 2],
        normalise: bool,
    ) -> Result<Comparison<'p>, Error> {
        before.check_comparable(after, names, normalise)?;
        let title = format!("{}: {} against {}", after.title, names[1], names[0]);
        let gone = gone(before, after);
        Ok(Comparison { before, after, names, title, normalise, gone })
    }

    fn drawn(&self) -> Result<Option<String>, Error> {
        if total(self.after) == 0 {
            return Ok(None);
        }
        let options = differential::Options { normalize: self.normalise, ..differential::Options::default() };
        let [before, after] = [self.before, self.after].map(lines);
        let mut merged = Vec::new();
        let failed = |error: std::io::Error| Error::Malformed(format!("the profiles cannot be compared: {error}"));
        differential::from_readers(options, before.as_bytes(), after.as_bytes(), &mut merged).map_err(failed)?;
        let merged = String::from_utf8_lossy(&merged);
        let value = self.after.shown_type();
        Ok(draw(merged.lines(), &self.title, [self.direction(), self.subtitle()], &value, &mut PaletteMap::default()))
    }

    /// Returns the meaning of the colours as text.
    fn direction(&self) -> String {
        let [before, after] = self.names;
        let same = if self.normalise { "; scaled to the same total" } else { "" };
        let gone = &self.gone;
        format!("red: more in {after} than in {before}; blue: less in {after}; widths are those of {after}{same}{gone}")
    }

    /// Returns the meaning of the colours as HTML with coloured words.
    fn note(&self) -> String {
        let [before, after] = self.names.map(escaped);
        let same = if self.normalise { "; scaled to the same total" } else { "" };
        format!(
            "<span class=\"key\" style=\"background:#f77\">red</span> more in {after} than in {before}, \
             <span class=\"key\" style=\"background:#77f\">blue</span> less in {after}, \
             <span class=\"key\" style=\"background:#eee\">white</span> the same; widths are those of {after}{same}{}",
            escaped(&self.gone)
        )
    }

    fn subtitle(&self) -> String {
        let [before, after] = self.names;
        let facts = [self.before, self.after].map(facts_line);
        format!("{} | {before}: {} | {after}: {}", self.direction(), facts[0], facts[1])
    }
}

fn total(profile: &Profile<Name>) -> i64 {
    let values = profile.samples.iter().filter_map(|sample| sample.values.get(profile.shown));
    values.filter(|value| **value > 0).fold(0, |sum, value| sum.saturating_add(*value))
}

/// Returns a text with the share of `before` that is in stacks which `after` does not have, or an empty text if there
/// are none. The flame graph has the widths of `after`, so these stacks have no width in it.
#[expect(clippy::cast_precision_loss, reason = "a percentage with one decimal")]
fn gone(before: &Profile<Name>, after: &Profile<Name>) -> String {
    let drawn = |profile: &Profile<Name>| -> HashMap<String, i64> {
        let mut stacks = HashMap::new();
        for line in lines(profile).lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap_or((line, "0"));
            let sum: &mut i64 = stacks.entry(stack.to_owned()).or_default();
            *sum = sum.saturating_add(value.parse().unwrap_or_default());
        }
        stacks
    };
    let kept = drawn(after);
    let gone = drawn(before).into_iter().filter(|(stack, _)| !kept.contains_key(stack));
    let gone = gone.fold(0_i64, |sum, (_, value)| sum.saturating_add(value));
    if gone == 0 {
        return String::new();
    }
    format!(
        "; {:.1} % of the first profile is in stacks that the second does not have, and is not drawn",
        100.0 * gone as f64 / total(before) as f64
    )
}

fn facts_line(profile: &Profile<Name>) -> String {
    let facts: Vec<String> = profile.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    facts.join(" · ")
}

/// Returns the stacks in inferno's input format. Unlike in the text format, names keep their spaces.
fn lines(profile: &Profile<Name>) -> String {
    let mut lines = String::new();
    for sample in &profile.samples {
        let value = sample.values.get(profile.shown).copied().unwrap_or_default();
        // A negative value, more freed than allocated, has no width.
        if value <= 0 {
            continue;
        }
        let thread = (!sample.thread.is_empty()).then_some(sample.thread.as_str());
        let frames = sample.frames.iter().rev().map(|frame| &**frame);
        let words: Vec<String> = thread.into_iter().chain(frames).map(frame).collect();
        let stack = if words.is_empty() { "[unknown]".to_owned() } else { words.join(";") };
        let _ = writeln!(lines, "{stack} {value}");
    }
    lines
}

/// Replaces characters with a meaning in inferno's format: `;` separates frames, a line break ends a stack, and `#`
/// begins a comment. Inferno would take a number after the last space of a name for the value of another profile.
fn frame(name: &str) -> String {
    let mut name: String = name
        .chars()
        .map(|letter| {
            if letter == ';' {
                ':'
            } else if letter.is_control() {
                '_'
            } else {
                letter
            }
        })
        .collect();
    if let Some((_, last)) = name.rsplit_once(' ')
        && last.parse::<f64>().is_ok()
    {
        name = name.replace(' ', "_");
    }
    if name.starts_with('#') { format!("_{name}") } else { name }
}

fn drawn(profile: &Profile<Name>) -> Option<String> {
    let lines = lines(profile);
    let mut colours = PaletteMap::default();
    for name in profile.samples.iter().flat_map(|sample| &sample.frames).map(|name| frame(name)) {
        let colour = colour_of(&name);
        colours.insert(name, colour);
    }
    // The roots come last and overwrite functions of the same name. The lowest root has an empty name here.
    for root in profile.samples.iter().map(|sample| frame(&sample.thread)).chain([String::new()]) {
        colours.insert(root, Color { r: 205, g: 205, b: 210 });
    }
    let facts = facts_line(profile);
    draw(lines.lines(), &profile.title, [first_of(&facts), facts], &profile.shown_type(), &mut colours)
}

/// Returns the colour of the function's owner. Black text is readable on all of them.
fn colour_of(name: &str) -> Color {
    let of = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    let [r, g, b]: [u8; 3] = match name {
        _ if of(&["klad_", "<klad_", "klad::", "core::ptr::drop_in_place<klad_"]) => [110, 200, 120],
        _ if name.trim_start_matches("rust_").starts_with("rocksdb") => [240, 165, 75],
        name if name.contains("::") => [125, 185, 225],
        _ => [225, 205, 110],
    };
    // Functions of one owner differ in lightness, by the FNV-1a hash of the name, so that it is the same in each
    // flame graph.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let lighter = u8::try_from(hash >> 27).expect("five bits");
    Color { r: r.saturating_add(lighter), g: g.saturating_add(lighter), b: b.saturating_add(lighter) }
}

/// Returns one line of facts. If not all fit, leaves out those that are too long, and ends with `…`. Earlier facts are
/// tried first, because they are more important.
fn first_of(facts: &str) -> String {
    if facts.chars().count() <= LINE_CHARS {
        return facts.to_owned();
    }
    let mut line = String::new();
    for fact in facts.split(" · ") {
        if line.chars().count() + fact.chars().count() + 5 <= LINE_CHARS {
            line.push_str(if line.is_empty() { "" } else { " · " });
            line.push_str(fact);
        }
    }
    line + " …"
}

/// Draws a flame graph as an SVG. `lines` has the visible line below the title, and the notes, which are a comment in
/// the file. Returns `None` if there are no stacks.
fn draw<'l>(
    stacks: impl Iterator<Item = &'l str>,
    title: &str,
    lines: [String; 2],
    value: &ValueType,
    colours: &mut PaletteMap,
) -> Option<String> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    let [subtitle, notes] = lines;
    options.subtitle = Some(subtitle);
    // The notes become an XML comment, which must not contain two hyphens.
    options.notes = notes.replace("--", "\u{2011}\u{2011}");
    // In a difference, unchanged frames are white, and must be visible on the background.
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 228, g: 228, b: 234 }));
    options.palette_map = Some(colours);
    options.min_width = MIN_WIDTH_PERCENT;
    // A function has the same colour in all flame graphs.
    options.deterministic = true;
    // The names of a row often begin with the same module, such as `rocksdb::` or `tokio::runtime::`, and differ at
    // the end.
    options.text_truncate_direction = flamegraph::TextTruncateDirection::Left;
    (options.count_name, options.factor) = match (value.kind.as_str(), value.unit.as_str()) {
        (_, "nanoseconds") => ("µs".to_owned(), 0.001),
        (kind, "count") => (kind.replace('_', " "), 1.0),
        (_, unit) => (unit.to_owned(), 1.0),
    };
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, stacks, &mut svg).ok()?;
    String::from_utf8(svg).ok()
}

/// Returns an SVG for a profile without samples: its title, a sentence that says so, and each fact on a line.
fn empty_svg(title: &str, facts: &str) -> String {
    let mut svg = String::from(
        "<?xml version=\"1.0\" standalone=\"no\"?>\n<svg version=\"1.1\" width=\"1200\" height=\"320\" \
         viewBox=\"0 0 1200 320\" xmlns=\"http://www.w3.org/2000/svg\" font-family=\"monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f4f4f4\"/>\n",
    );
    let lines =
        [title, "No samples were recorded."].into_iter().chain(facts.split(" · ").flat_map(|part| part.split(" | ")));
    for (number, line) in lines.enumerate() {
        let _ = writeln!(svg, "<text x=\"20\" y=\"{}\">{}</text>", 34 + number * 22, escaped(line));
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The number of characters that fit in the line below the title of a flame graph.
const LINE_CHARS: usize = 155;

/// The smallest width of a frame that is drawn, percent of the whole flame graph. Narrower frames would be invisible
/// points.
const MIN_WIDTH_PERCENT: f64 = 0.1;

/// The legend of the colours of [`colour_of`], in HTML.
const COLOURS: &str = "<span class=\"key\" style=\"background:#7dd587\">green</span> klad, \
                       <span class=\"key\" style=\"background:#fbb454\">orange</span> RocksDB, \
                       <span class=\"key\" style=\"background:#8cc8ee\">blue</span> other Rust and C++, \
                       <span class=\"key\" style=\"background:#eddb7d\">yellow</span> C, \
                       <span class=\"key\" style=\"background:#cdcdd2\">grey</span> threads; \
                       frames below 0.1 % are not drawn";

const STYLE: &str = include_str!("picture.css");
const SCRIPT: &str = include_str!("picture.js");
/// A script that ignores errors of `history.replaceState`. The flame graph calls this function to keep its state in the
/// page's address. The call fails in some pages, such as a page inside another one.
const HISTORY_GUARD: &str = "history.replaceState = (function (replace) { return function () { \
                      try { replace.apply(history, arguments); } catch (error) {} }; })(history.replaceState);\n";

/// Returns an HTML page. `sides` has each profile, whose facts the page shows, and its name, which is empty if there is
/// only one profile. `note` explains the colours, in HTML. `svg` is `None` if there are no samples.
fn page(title: &str, sides: &[(&str, &Profile<Name>)], note: &str, svg: Option<&str>) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>klad: {title}</title>\n<style>\n{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    if svg.is_some() {
        // The search field comes first, so that it is within reach on a phone.
        let _ = write!(
            page,
            "<form id=\"find\"><input type=\"search\" id=\"term\" placeholder=\"regular expression\" aria-label=\"search\">\
             <button>Search</button> <output id=\"found\"></output></form>\n<p class=\"note\">{note}</p>\n"
        );
    }
    for (name, profile) in sides {
        if !name.is_empty() {
            let _ = writeln!(page, "<h2>{}</h2>", escaped(name));
        }
        page.push_str("<dl>\n");
        for (name, value) in &profile.facts {
            let _ = writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
        }
        page.push_str("</dl>\n");
    }
    let Some(svg) = svg else {
        page.push_str("<p class=\"empty\">No samples were recorded.</p>\n");
        if sides.len() > 1 {
            let _ = writeln!(page, "<p class=\"note\">{note}</p>");
        }
        page.push_str("</html>\n");
        return page;
    };
    // The text before the element is only for separate SVG files.
    let svg = svg.find("<svg").map_or(svg, |at| &svg[at..]);
    let _ = write!(
        page,
        "<script>\n{HISTORY_GUARD}</script>\n<div class=\"picture\">\n{svg}\n</div>\n<script>\n{SCRIPT}</script>\n</html>\n"
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sample;
    use crate::testing::example;

    fn with(values: &[(&str, i64)]) -> Profile<Name> {
        let mut profile = example();
        profile.samples = values
            .iter()
            .map(|(name, value)| Sample {
                thread: String::new(),
                frames: vec![(*name).into()],
                values: vec![1, *value],
            })
            .collect();
        profile
    }

    #[test]
    fn a_flame_graph_has_frames_and_facts() {
        let svg = svg(&example());
        for part in ["CPU time", "events: 3 · sampling rate: 99 Hz", "g&lt;T, [u8: 8]&gt; (10 µs, 33.33%)", "worker"]
        {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        let page = flame_graph(&example());
        for part in ["<dt>events</dt><dd>3</dd>", "<svg", "id=\"term\"", "prefers-color-scheme: dark"] {
            assert!(page.contains(part), "{part} is missing");
        }
        assert!(
            !page.contains("<?xml") && !page.contains("<script src") && !page.contains("<link"),
            "it is self-contained"
        );
    }

    #[test]
    fn each_owner_has_its_own_colour_on_which_black_is_readable() {
        let part = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        let names = ["klad::server::worker::run", "rocksdb::DBImpl::Get", "tokio::runtime::park", "malloc"];
        let colours = names.map(colour_of);
        for (at, colour) in colours.iter().enumerate() {
            // The formula of WCAG 2.2.
            let luminance = 0.2126 * part(colour.r) + 0.7152 * part(colour.g) + 0.0722 * part(colour.b);
            assert!((luminance + 0.05) / 0.05 > 7.0, "{}", names[at]);
            assert!(!colours[..at].contains(colour));
        }
        let drawn = svg(&with(&[("klad::f", 1_000), ("rocksdb::g", 1_000)]));
        let [red, green, _] = colour(&drawn, "klad::f");
        assert!(green > red);
        let [red, green, _] = colour(&drawn, "rocksdb::g");
        assert!(red > green);
    }

    #[test]
    fn the_line_of_facts_fits_and_the_notes_have_the_rest() {
        let mut profile = example();
        profile.facts.push(("clock".to_owned(), "a word ".repeat(40)));
        profile.facts.push(("state".to_owned(), "--heap-sample is 0".to_owned()));
        let drawn = svg(&profile);
        let line = first_of(&facts_line(&profile));
        assert!(line.chars().count() <= LINE_CHARS + 2 && line.ends_with(" · state: --heap-sample is 0 …"), "{line}");
        assert!(drawn.contains(&line) && drawn.contains("a word a word"), "{drawn}");
        assert!(!drawn.split("<!--NOTES").nth(1).expect("notes").split("-->").next().expect("its end").contains("--"));
    }

    #[test]
    fn an_empty_flame_graph_says_so_and_shows_its_facts() {
        let mut profile = with(&[]);
        profile.facts = vec![("waits".to_owned(), "0 waits above 10 µs among 1,203,443 acquisitions".to_owned())];
        for picture in
            [svg(&profile), flame_graph(&profile), difference(&profile, &profile, ["A", "B"], false).expect("alike")]
        {
            assert!(picture.contains("No samples were recorded."), "{picture}");
            assert!(picture.contains("0 waits above 10 µs among 1,203,443 acquisitions"), "{picture}");
        }
    }

    #[test]
    fn a_difference_says_how_much_of_the_first_profile_is_not_drawn() {
        let (before, after) = (with(&[("stays", 300), ("goes", 100)]), with(&[("stays", 300), ("comes", 7)]));
        let words = "25.0 % of the first profile is in stacks that the second does not have";
        for picture in [difference, difference_page] {
            assert!(picture(&before, &after, ["A", "B"], false).expect("alike").contains(words));
            assert!(
                !picture(&after, &after, ["A", "B"], false).expect("alike").contains("that the second does not have")
            );
            // An empty profile has no flame graph, but the note about the first profile is still shown.
            let nothing = picture(&before, &with(&[]), ["A", "B"], false).expect("alike");
            assert!(
                nothing.contains("100.0 % of the first profile") && nothing.contains("No samples were recorded."),
                "{nothing}"
            );
        }
    }

    /// Returns the colour of a function's rectangle.
    fn colour(svg: &str, name: &str) -> [u8; 3] {
        let after = svg.split(&format!("<title>{name} (")).nth(1).expect("it is drawn");
        let rgb = after.split("fill=\"rgb(").nth(1).expect("a colour").split(')').next().expect("its end");
        let parts: Vec<u8> = rgb.split(',').map(|part| part.trim().parse().expect("a number")).collect();
        parts.try_into().expect("three")
    }

    #[test]
    fn increases_are_red_and_decreases_are_blue() {
        let (before, after) = (with(&[("grows", 100), ("shrinks", 500)]), with(&[("grows", 400), ("shrinks", 200)]));
        let drawn = difference(&before, &after, ["old", "new"], false).expect("alike");
        let [red, _, blue] = colour(&drawn, "grows");
        assert!(red > blue, "{drawn}");
        let [red, _, blue] = colour(&drawn, "shrinks");
        assert!(red < blue, "{drawn}");
        assert!(drawn.contains("red: more in new than in old; blue: less in new"), "{drawn}");
        assert!(drawn.contains("old: events: 3") && drawn.contains("new: events: 3"), "both sides' facts");
        // The twin: the opposite difference has the opposite colours.
        let reversed = difference(&after, &before, ["new", "old"], false).expect("alike");
        let [red, _, blue] = colour(&reversed, "grows");
        assert!(red < blue, "{reversed}");
    }

    #[test]
    fn a_profile_scaled_to_the_same_total_has_no_difference() {
        let (before, after) = (with(&[("f", 100), ("g", 300)]), with(&[("f", 200), ("g", 600)]));
        let white = |normalise| {
            let drawn = difference(&before, &after, ["A", "B"], normalise).expect("alike");
            let [red, green, blue] = colour(&drawn, "g");
            red == green && green == blue
        };
        assert_eq!((white(true), white(false)), (true, false));
        let mut other = before.clone();
        other.shown = 0;
        assert!(matches!(difference(&before, &other, ["A", "B"], true), Err(Error::Malformed(_))));
    }

    #[test]
    fn special_characters_in_names_do_not_change_the_stacks() {
        let svg = svg(&with(&[("a;b 7", 1_000), ("#c", 1_000), ("<script>", 1_000), ("x 1.5", 1_000)]));
        for name in ["a:b_7 (1 µs", "_#c (1 µs", "&lt;script&gt; (1 µs", "x_1.5 (1 µs"] {
            assert!(svg.contains(name), "{name} is missing in {svg}");
        }
    }
}
