//! Text of keys and values for people and programs, from which the bytes can be restored. Called by the commands and
//! `mod`.

use std::fmt::Write as _;

/// Returns bytes as one line: printable characters unchanged, a backslash and all other bytes as `\\`, `\n`, `\r`,
/// `\t` or `\xHH`. Different byte strings give different text, and the text cannot control a terminal.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for piece in bytes.utf8_chunks() {
        for character in piece.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                _ if is_plain(character) => text.push(character),
                _ => push_bytes(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push_bytes(&mut text, piece.invalid());
    }
    text
}

/// Returns a message as one line without characters that control a terminal; each of these becomes `?`.
pub(super) fn printable(message: &str) -> String {
    message.chars().map(|character| if is_plain(character) { character } else { '?' }).collect()
}

/// Returns whether a character is visible and affects no other one: it is no control character, changes no direction of
/// writing, and is not invisible.
fn is_plain(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn push_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The inverse of `escape`, like `printf '%b'`.
    fn unescape(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, after @ ..] = rest {
            (rest, ()) = match (first, after) {
                (b'\\', [b'x', high, low, after @ ..]) => {
                    let digits = [*high, *low];
                    let digits = std::str::from_utf8(&digits).expect("digits");
                    (after, bytes.push(u8::from_str_radix(digits, 16).expect("hexadecimal")))
                }
                (b'\\', [b'n', after @ ..]) => (after, bytes.push(b'\n')),
                (b'\\', [b'r', after @ ..]) => (after, bytes.push(b'\r')),
                (b'\\', [b't', after @ ..]) => (after, bytes.push(b'\t')),
                (b'\\', [b'\\', after @ ..]) => (after, bytes.push(b'\\')),
                (plain, after) => (after, bytes.push(*plain)),
            };
        }
        bytes
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escape("Grüße\t1\\2\r\n".as_bytes()), "Grüße\\t1\\\\2\\r\\n");
        assert_eq!(escape(b"\x1b[2J\0\xff"), "\\x1b[2J\\x00\\xff");
        assert_eq!(escape("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
    }

    proptest! {
        #[test]
        fn any_bytes_survive_their_escapes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = escape(&bytes);
            prop_assert!(text.chars().all(is_plain));
            prop_assert_eq!(unescape(&text), bytes);
        }
    }
}
