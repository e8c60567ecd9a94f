//! Breaks the long lines of a report in Markdown, so that it can be read where lines are not wrapped.

use textwrap::{Options, WordSeparator, WordSplitter};

/// The longest line, characters.
const WIDTH: usize = 118;

/// Returns `text` with lines of at most [`WIDTH`] characters. Rows of tables and single words stay whole, even if they
/// are longer. A command is a line indented by four spaces; its parts end with ` \`, as a shell expects it.
#[must_use]
pub(super) fn wrapped(text: &str) -> String {
    text.lines().map(|line| wrapped_line(line) + "\n").collect()
}

fn wrapped_line(line: &str) -> String {
    if line.starts_with('|') || line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let options = |width| {
        let options = Options::new(width).word_separator(WordSeparator::AsciiSpace).break_words(false);
        options.word_splitter(WordSplitter::NoHyphenation)
    };
    match line.strip_prefix("    ") {
        Some(command) => {
            let lines = textwrap::wrap(command, options(WIDTH - 10));
            format!("    {}", lines.join(" \\\n        "))
        }
        None if line.starts_with("* ") => textwrap::fill(line, options(WIDTH).subsequent_indent("  ")),
        None => textwrap::fill(line, options(WIDTH)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words_and_say_the_same() {
        let word = "word-with-hyphens ".repeat(20);
        let text = format!("* {word}end\n\n| {word}|\n    klad {word}end\n{}\n", "x".repeat(150));
        let wrapped = wrapped(&text);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH || line.starts_with(['|', 'x'])), "{wrapped}");
        assert!(lines[1].starts_with("  word") && wrapped.contains("word-with-hyphens \\\n        word"), "{wrapped}");
        let words = |text: &str| text.replace(" \\\n", " ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&wrapped), words(&text));
    }
}
