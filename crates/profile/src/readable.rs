//! Makes linker names readable: `rocksdb::DBImpl::Write` instead of `_ZN7rocksdb6DBImpl5WriteERKNS_12WriteOptionsE…`.
//!
//! A name begins with its module or type, even if it is a trait's method. So names can be sorted and searched by it,
//! and a tool that removes brackets does not leave only `::poll`. Left out are hashes, parameters, return types,
//! placeholders of generic types such as `T`, and, if a name is too long, its deeply nested parts. Called by `symbols`.

use cpp_demangle::DemangleOptions;

/// The maximum length of a name with all its generic parameters, in characters. A longer name loses the parameters of
/// its parameters. If it is still longer than this, it loses all parameters.
const LONG: usize = 100;

/// The bytes of a name that are kept; a longer name is cut here and ends with `…`. Some names of C++ templates have
/// thousands of bytes.
const NAME_BYTES_MAX: usize = 400;

/// Suffixes that gcc and LLVM add to the name of a function's copy or part.
const COPIES: [&str; 6] = [".constprop", ".part", ".isra", ".cold", ".lto_priv", ".llvm"];

/// Demangles and shortens a name.
pub(super) fn readable(symbol: &str) -> String {
    let name = rust(symbol).or_else(|| cpp(symbol)).unwrap_or_else(|| plain(symbol).to_owned());
    let mut name = [1, 0]
        .into_iter()
        .fold(name, |name, depth| if name.chars().count() > LONG { without_inner_parts(&name, depth) } else { name });
    if name.len() > NAME_BYTES_MAX {
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name.push('…');
    }
    name
}

/// Returns the name without the suffix of a copy ([`COPIES`]).
fn plain(symbol: &str) -> &str {
    let end = COPIES.iter().filter_map(|copy| symbol.find(copy)).min();
    end.filter(|end| *end > 0).map_or(symbol, |end| &symbol[..end])
}

fn rust(symbol: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(symbol).ok()?;
    // `{{closure}}` is the older form of `{closure#0}`.
    let name = format!("{demangled:#}").replace("{{", "{").replace("}}", "}");
    Some(without_letter_parameters(&with_own_type_first(name)))
}

/// Shortens the name of a method to its type and function, and drops the generic arguments of a function:
///
/// * `<a::T as b::Trait>::f`, `<a::T>::f`, `b::<impl a::T>::f` and `b::<impl b::Trait for a::T>::f` become `a::T::f`.
/// * `f::<a::T>` becomes `f`.
/// * Methods of types without a module keep their names: `<u64 as core::fmt::Display>::fmt`,
///   `core::num::<impl u64>::pow`.
fn with_own_type_first(mut name: String) -> String {
    let mut from = 0;
    while let Some(open) = name[from..].find('<').map(|at| from + at) {
        from = open + 1;
        let begins = open == 0;
        if !begins && !name[..open].ends_with("::") {
            continue;
        }
        let Some(close) = closing(&name, open) else { break };
        let (inside, rest) = (&name[open + 1..close], &name[close + 1..]);
        let own = if let Some(implementation) = inside.strip_prefix("impl ") {
            after_word(implementation, " for ").unwrap_or(implementation)
        } else if begins {
            before_word(inside, " as ").unwrap_or(inside)
        } else {
            // The type arguments of a generic function are not needed, except those of `drop_in_place`.
            let end = if name[..open].ends_with("drop_in_place::") { open } else { close + 1 };
            name.replace_range(open - 2..end, "");
            from = open - 2;
            continue;
        };
        let own = own.trim_start_matches(['&', '*']);
        let own = ["mut ", "const "].into_iter().fold(own, |own, word| own.strip_prefix(word).unwrap_or(own));
        if is_path(own) {
            name = format!("{own}{rest}");
            from = 0;
        }
    }
    name
}

/// Returns whether a type names its module, or begins with `<`: then a later step resolves it.
fn is_path(name: &str) -> bool {
    let head = name.split('<').next().unwrap_or_default();
    name.starts_with('<') || (head.contains("::") && !head.contains([' ', '(', '[']))
}

/// Removes lists of generic parameters that are all placeholders, such as `<T>` or `<K, V>`: the name does not tell
/// what they stand for.
fn without_letter_parameters(name: &str) -> String {
    let is_letter = |word: &str| word == "_" || (word.starts_with(|c: char| c.is_ascii_uppercase()) && is_word(word));
    let (mut shown, mut rest) = (String::with_capacity(name.len()), name);
    while let Some(open) = rest.find('<') {
        let close = closing(rest, open).filter(|_| open > 0 && !rest[..open].ends_with("::"));
        let letters = close.filter(|close| rest[open + 1..*close].split(',').all(|word| is_letter(word.trim())));
        shown.push_str(&rest[..open]);
        if let Some(close) = letters {
            rest = &rest[close + 1..];
        } else {
            shown.push('<');
            rest = &rest[open + 1..];
        }
    }
    shown + rest
}

fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

fn cpp(symbol: &str) -> Option<String> {
    // The suffix marks a copy for one caller, or the cold part.
    let plain = symbol.split_once('.').map_or(symbol, |(plain, _)| plain);
    // Without this check, names of other functions would be demangled as types: `f` would become `float`.
    let parsed = plain.starts_with("_Z").then(|| cpp_demangle::Symbol::new(plain).ok())??;
    let name = parsed.demangle_with_options(&DemangleOptions::new().no_params().no_return_type()).ok()?;
    let name = without_noise(&name);
    Some(called_by_function(&name).unwrap_or(name))
}

/// Replaces the name of a `std::function`'s handler by that of the function which it calls, the last template argument:
/// `std::_Function_handler<a (b), c::{lambda#1}>::_M_invoke` becomes `c::{lambda#1}::_M_invoke`. Returns `None` for any
/// other name.
fn called_by_function(name: &str) -> Option<String> {
    let handler = "std::_Function_handler";
    let open = name.starts_with(handler).then_some(handler.len())?;
    let close = closing(name, open)?;
    let comma = name[..close].rmatch_indices(", ").map(|(at, _)| at).find(|at| is_outside(&name[open + 1..*at]))?;
    Some(format!("{}{}", &name[comma + 2..close], &name[close + 1..]))
}

/// Shortens C++ names: removes anonymous namespaces and the parameters of lambdas and of their functions, and writes
/// `std::string` for the standard library's long name.
fn without_noise(name: &str) -> String {
    const STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    let name = name.replace(STRING, "std::string").replace("(anonymous namespace)::", "");
    let name = name.replace("std::__cxx11::", "std::").replace("[abi:cxx11]", "");
    let (mut shown, mut depth) = (String::with_capacity(name.len()), 0_usize);
    for letter in name.chars() {
        match letter {
            '(' | ')' if depth == 0 && shown.ends_with(if letter == '(' { "operator" } else { "operator(" }) => {
                shown.push(letter);
            }
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            // Spaces before these characters are removed, as in `a<b >` or after removed parameters.
            '>' | ',' | '#' if !shown.ends_with("operator") => {
                shown.truncate(shown.trim_end().len());
                shown.push(letter);
            }
            _ => shown.push(letter),
        }
    }
    shown.truncate(shown.trim_end().len());
    shown
}

/// Returns the index of the bracket that closes the one at `open`.
fn closing(name: &str, open: usize) -> Option<usize> {
    let (mut depth, mut before) = (0_usize, ' ');
    for (at, letter) in name.char_indices().skip_while(|(at, _)| *at < open) {
        match letter {
            '<' => depth += 1,
            '>' if before != '-' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        before = letter;
    }
    None
}

/// Returns the text before the first `word` outside of brackets.
fn before_word<'n>(name: &'n str, word: &str) -> Option<&'n str> {
    let at = name.match_indices(word).map(|(at, _)| at).find(|at| is_outside(&name[..*at]))?;
    Some(&name[..at])
}

/// Returns the text after the first `word` outside of brackets.
fn after_word<'n>(name: &'n str, word: &str) -> Option<&'n str> {
    before_word(name, word).map(|before| &name[before.len() + word.len()..])
}

/// Returns whether all opened brackets are closed.
fn is_outside(text: &str) -> bool {
    let closed = text.matches('>').count() - text.matches("->").count();
    text.matches('<').count() == closed
}

/// Replaces the contents of brackets that are nested deeper than `depth_max`: with 1, `a<b<c>, d>::e` becomes
/// `a<b<…>, d>::e`; with 0, `a<…>::e`.
fn without_inner_parts(name: &str, depth_max: usize) -> String {
    let (mut shown, mut depth, mut before) = (String::with_capacity(name.len()), 0_usize, ' ');
    // The bracket of `<T as Trait>::method` does not count.
    let deepest = depth_max + usize::from(name.starts_with('<'));
    for letter in name.chars() {
        match letter {
            // `operator<`, `->` and the like are not brackets.
            '<' if !shown.ends_with("operator") && !shown.ends_with("operator<") => {
                depth += 1;
                if depth <= deepest {
                    shown.push('<');
                } else if depth == deepest + 1 {
                    shown.push_str("<…>");
                }
            }
            '>' if before != '-' && before != '=' && depth > 0 => {
                if depth <= deepest {
                    shown.push('>');
                }
                depth -= 1;
            }
            letter if depth <= deepest => shown.push(letter),
            _ => {}
        }
        before = letter;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_readable(names: &[(&str, &str)]) {
        for (symbol, name) in names {
            assert_eq!(readable(symbol), *name, "{symbol}");
        }
    }

    #[test]
    fn names_are_demangled() {
        assert_readable(&[
            ("_ZN7rocksdb6DBImpl5WriteERKNS_12WriteOptionsEPNS_10WriteBatchE", "rocksdb::DBImpl::Write"),
            ("_ZN7rocksdb6DBImpl9WriteImplEv.constprop.0", "rocksdb::DBImpl::WriteImpl"),
            ("_ZN4klad4http7service6answer17h0123456789abcdefE", "klad::http::service::answer"),
            ("_RNvCskwGfYPst2Cb_3foo3bar", "foo::bar"),
            ("malloc", "malloc"),
            ("SaveError.part.0", "SaveError"),
            ("XXH3_hashLong_64b_default.constprop.0", "XXH3_hashLong_64b_default"),
            (".cold", ".cold"),
            ("_Znwm", "operator new"),
        ]);
    }

    #[test]
    fn rust_names_begin_with_their_module_and_have_no_letter_parameters() {
        assert_readable(&[
            (
                "_RNvNvMs0_NtNtNtCsjrHSEGnQ3l9_3std3sys6thread4unixNtB7_6Thread3new12thread_start",
                "std::sys::thread::unix::Thread::new::thread_start",
            ),
            (
                "_ZN79_$LT$klad..storage..rocksdb..RocksDbEngine$u20$as$u20$klad..storage..Engine$GT$4read17h3c3a7039b47e125fE",
                "klad::storage::rocksdb::RocksDbEngine::read",
            ),
            (
                "_ZN87_$LT$core..future..poll_fn..PollFn$LT$F$GT$$u20$as$u20$core..future..future..Future$GT$4poll17h30b0a493b8676096E",
                "core::future::poll_fn::PollFn::poll",
            ),
            (
                "_ZN5tokio7runtime4task7harness20Harness$LT$T$C$S$GT$4poll17h218b352b01b7bd40E",
                "tokio::runtime::task::harness::Harness::poll",
            ),
            (
                "_ZN4klad4http7service7Service6answer28_$u7b$$u7b$closure$u7d$$u7d$17hc5fe78d367adaef6E",
                "klad::http::service::Service::answer::{closure}",
            ),
            (
                "_ZN4core3ptr41drop_in_place$LT$klad..storage..Write$GT$17h0c049d1cb7271907E",
                "core::ptr::drop_in_place<klad::storage::Write>",
            ),
            (
                "_RINvNvMs2_NtCslNYArtu3iFV_5alloc7raw_vecINtB8_11RawVecInnerpE7reserve21do_reserve_and_handleNtNtBa_5alloc6GlobalEBa_",
                "alloc::raw_vec::RawVecInner::reserve::do_reserve_and_handle",
            ),
            (
                "_RNvXs2_NtNtCsgEmfK2I1SDS_4core3net7ip_addrNtB5_6IpAddrNtNtB9_3fmt7Display3fmt",
                "core::net::ip_addr::IpAddr::fmt",
            ),
            ("_RNvXNtNtNtCsgEmfK2I1SDS_4core3fmt3num3imphNtB6_7Display3fmt", "<u8 as core::fmt::Display>::fmt"),
            (
                "_RINvNtCsgEmfK2I1SDS_4core3ptr13drop_in_placeNCNvXs4_NtCsjrHSEGnQ3l9_3std9backtraceNtBO_9BacktraceNtNtB4_3fmt7Display3fmt0EBQ_",
                "core::ptr::drop_in_place<<std::backtrace::Backtrace as core::fmt::Display>::fmt::{closure#0}>",
            ),
        ]);
    }

    #[test]
    fn own_types_come_first_at_any_depth() {
        for (name, read) in [
            ("tokio::time::<impl tokio::time::handle::Handle>::process", "tokio::time::handle::Handle::process"),
            ("a::b::<impl c::From<I> for alloc::boxed::Box<[I]>>::from_iter", "alloc::boxed::Box<[I]>::from_iter"),
            ("<&object::cache::Cache<R> as object::Read>::read_at", "object::cache::Cache<R>::read_at"),
            ("<<a::B as c::D>::E as f::G>::h::{closure#1}", "a::B::E::h::{closure#1}"),
            ("<a::B<fn(c::D) -> e::F> as g::H<i::J>>::k", "a::B<fn(c::D) -> e::F>::k"),
            ("core::num::<impl u64>::pow", "core::num::<impl u64>::pow"),
            ("<dyn core::any::Any>::is", "<dyn core::any::Any>::is"),
            ("<[T] as a::B>::c", "<[T] as a::B>::c"),
            ("a::b::<c::D<e>>::{closure#0}", "a::b::{closure#0}"),
            ("a::<b", "a::<b"),
        ] {
            assert_eq!(with_own_type_first(name.to_owned()), read);
        }
        assert_eq!(without_letter_parameters("a::B<T, Bs,_>::c<u8>::d<e::F<G>>"), "a::B::c<u8>::d<e::F>");
        assert_eq!(without_letter_parameters("<[T] as a::B<C>>::d"), "<[T] as a::B>::d");
    }

    const HANDLER: &str = "_ZNSt17_Function_handlerIFN7rocksdb6StatusERKS1_RKNS0_17ParsedInternalKeyERKNS0_5SliceEPKNS0_18CompactionIteratorERNS0_17CompactionOutputsEEZNS0_13CompactionJob18CreateFileHandlersEPNS0_18SubcompactionStateERNSG_26SubcompactionKeyBoundariesEEUlS3_S6_S9_SC_SE_E0_E9_M_invokeERKSt9_Any_dataS3_S6_S9_OSC_SE_";

    #[test]
    fn cpp_names_keep_their_distinguishing_parts() {
        let put = "_ZN7rocksdb12_GLOBAL__N_116MemTableInserter9PutCFImplIZNS1_5PutCFEjRKNS_5SliceES5_EUlPNS_10WriteBatchEjS5_S5_E_EENS_\
                   6StatusEjS5_S5_NS_9ValueTypeET_PKNS_18ProtectionInfoKVOSImEE.constprop.0";
        assert_readable(&[
            (put, "rocksdb::MemTableInserter::PutCFImpl<rocksdb::MemTableInserter::PutCF::{lambda#1}>"),
            (
                "_ZN7rocksdb12ShardedCacheINS_11clock_cache15ClockCacheShardINS1_19AutoHyperClockTableEEEE6LookupERKNS_5SliceEPKNS_5Cache15CacheItemHelperEPNS9_13CreateContextENS9_8PriorityEPNS_10StatisticsE",
                "rocksdb::ShardedCache<rocksdb::clock_cache::ClockCacheShard<…>>::Lookup",
            ),
            (
                "_ZN7rocksdb14InlineSkipListIRKNS_11MemTableRep13KeyComparatorEE6InsertILb0EEEbPKcPNS5_6SpliceEb",
                "rocksdb::InlineSkipList<rocksdb::MemTableRep::KeyComparator const&>::Insert<false>",
            ),
            (
                "_ZN7rocksdb25PlaceholderCacheInterfaceILNS_14CacheEntryRoleE13EPNS_5CacheEE6InsertERKNS_5SliceEmPPNS2_6HandleE.isra.0",
                "rocksdb::PlaceholderCacheInterface<13, rocksdb::Cache*>::Insert",
            ),
            ("_ZN7rocksdb11DecodeEntryclEPKcS2_PjS3_S3_S3_.isra.0", "rocksdb::DecodeEntry::operator()"),
            ("_ZN7rocksdb12CompositeEnv12TimeToStringB5cxx11Em", "rocksdb::CompositeEnv::TimeToString"),
            ("_ZN7rocksdbltERKNS_5SliceES2_", "rocksdb::operator<"),
            (HANDLER, "rocksdb::CompactionJob::CreateFileHandlers::{lambda#2}::_M_invoke"),
        ]);
    }

    #[test]
    fn long_names_lose_only_their_inner_parts() {
        assert_eq!(without_inner_parts("a<b<c, d<e>>, f>::g<h>", 1), "a<b<…>, f>::g<h>");
        assert_eq!(without_inner_parts("a<b<c, d<e>>, f>::g<h>", 0), "a<…>::g<…>");
        assert_eq!(without_inner_parts("<a<b<c>> as d<e>>::f", 1), "<a<b<…>> as d<e>>::f");
        assert_eq!(without_inner_parts("a::operator<", 1), "a::operator<");
        assert_eq!(without_inner_parts("f<fn(a) -> b<c<d>>>::g", 1), "f<fn(a) -> b<…>>::g");
        assert!(readable(&"é".repeat(1_000)).len() <= NAME_BYTES_MAX + 3);
    }

    #[test]
    fn invalid_names_do_not_panic() {
        for odd in
            ["", "<", ">", "<>", "a::<", "<a as >::b", "_ZN", "_R", "operator<", "a->b", "::<>::", "(", ")", "_ZN3fooE"]
        {
            let _ = readable(odd);
            let _ = without_letter_parameters(&with_own_type_first(odd.to_owned()));
            let _ = without_noise(odd);
            let _ = without_inner_parts(odd, 0);
        }
    }
}
