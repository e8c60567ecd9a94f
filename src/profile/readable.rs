//! From the linker's names to people's: `rocksdb::DBImpl::Write`, not `_ZN7rocksdb6DBImpl5WriteERKNS_12WriteOptionsE…`.
//!
//! Called by `symbols`.

use cpp_demangle::DemangleOptions;

/// Names longer than this lose the inner parts of their generic parameters.
const LONG: usize = 120;

/// Nothing longer is shown, bytes: some names of templates have thousands.
const NAME_BYTES_MAX: usize = 400;

/// Demangled, without hashes, parameters and return types.
pub(super) fn readable(symbol: &str) -> String {
    let name = rust(symbol).or_else(|| cpp(symbol)).unwrap_or_else(|| symbol.to_owned());
    let mut name = if name.len() > LONG { without_inner_parts(&name) } else { name };
    if name.len() > NAME_BYTES_MAX {
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name.push('…');
    }
    name
}

fn rust(symbol: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(symbol).ok()?;
    Some(format!("{demangled:#}"))
}

fn cpp(symbol: &str) -> Option<String> {
    // What is left to the name in other words: a copy that the compiler has made for one caller, or the cold part.
    let plain = symbol.split_once('.').map_or(symbol, |(plain, _)| plain);
    // Alone, types have such names as well: `f` would be `float`.
    let parsed = plain.starts_with("_Z").then(|| cpp_demangle::Symbol::new(plain).ok())??;
    parsed.demangle_with_options(&DemangleOptions::new().no_params().no_return_type()).ok()
}

/// `a<b<c>, d>::e` becomes `a<b<…>, d>::e`.
fn without_inner_parts(name: &str) -> String {
    /// Of these, what is in the second is left out.
    const DEPTH: usize = 1;
    let (mut shown, mut depth, mut before) = (String::with_capacity(name.len()), 0_usize, ' ');
    // `<T as Trait>::method` is no parameter.
    let qualified = usize::from(name.starts_with('<'));
    for letter in name.chars() {
        match letter {
            // `operator<`, `->` and the like are no brackets.
            '<' if !shown.ends_with("operator") => {
                depth += 1;
                if depth <= DEPTH + qualified {
                    shown.push('<');
                } else if depth == DEPTH + qualified + 1 {
                    shown.push_str("<…>");
                }
            }
            '>' if before != '-' && before != '=' && depth > 0 => {
                if depth <= DEPTH + qualified {
                    shown.push('>');
                }
                depth -= 1;
            }
            letter if depth <= DEPTH + qualified => shown.push(letter),
            _ => {}
        }
        before = letter;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_they_were_written() {
        let written = [
            ("_ZN7rocksdb6DBImpl5WriteERKNS_12WriteOptionsEPNS_10WriteBatchE", "rocksdb::DBImpl::Write"),
            ("_ZN7rocksdb6DBImpl9WriteImplEv.constprop.0", "rocksdb::DBImpl::WriteImpl"),
            ("_ZN4klad4http7service6answer17h0123456789abcdefE", "klad::http::service::answer"),
            ("_RNvCskwGfYPst2Cb_3foo3bar", "foo::bar"),
            ("malloc", "malloc"),
            ("_Znwm", "operator new"),
        ];
        for (symbol, name) in written {
            assert_eq!(readable(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn long_names_lose_their_inner_parts_and_nothing_else() {
        assert_eq!(without_inner_parts("a<b<c, d<e>>, f>::g<h>"), "a<b<…>, f>::g<h>");
        assert_eq!(without_inner_parts("<a<b<c>> as d<e>>::f"), "<a<b<…>> as d<e>>::f");
        assert_eq!(without_inner_parts("a::operator<"), "a::operator<");
        assert_eq!(without_inner_parts("f<fn(a) -> b<c<d>>>::g"), "f<fn(a) -> b<…>>::g");
        assert!(readable(&"é".repeat(1_000)).len() <= NAME_BYTES_MAX + 3);
    }
}
