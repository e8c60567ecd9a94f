use proptest::prelude::*;

use super::*;

fn rest(low: &[u8], high: Option<&[u8]>, reverse: bool) -> Rest {
    Rest { low: Bytes::copy_from_slice(low), high: high.map(Bytes::copy_from_slice), reverse }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(1), Just(0x7F), Just(0x80), Just(0xFF), any::<u8>()];
    proptest::collection::vec(byte, 0..5)
}

proptest! {
    #[test]
    fn a_nearer_bound_is_inside(low in key(), high in proptest::option::of(key()), reverse: bool, reach in 0_u32..80) {
        if let Some(bound) = rest(&low, high.as_deref(), reverse).nearer(reach) {
            prop_assert!(*bound > *low, "{:?}", bound);
            prop_assert!(high.is_none_or(|high| *bound < *high), "{:?}", bound);
        }
    }

    #[test]
    fn bounds_come_nearer_without_end(low in key(), high in key(), reverse: bool) {
        // Keys between both, so that there is a bound: the range from a key to its successor is empty.
        prop_assume!([&*low, &[0, 0]].concat() < high);
        let rest = rest(&low, Some(&high), reverse);
        let bounds: Vec<_> = (0..120).filter_map(|reach| rest.nearer(reach)).collect();
        prop_assert!(bounds.len() > 8 && bounds[0] != bounds[bounds.len() - 1], "{:?}", bounds);
        for bound in &bounds {
            prop_assert!(*low < **bound && **bound < *high, "{:?}", bound);
        }
        // A bound leaves out the end of the start, so neighbours may change places. The ends of the list do not. Zeros
        // at the end make no difference.
        let padded = |bound: &[u8]| [bound, &[0; 20]].concat()[..20].to_vec();
        let (farthest, nearest) = (padded(&bounds[0]), padded(&bounds[bounds.len() - 1]));
        prop_assert!(if reverse { farthest <= nearest } else { farthest >= nearest }, "{:?} {:?}", farthest, nearest);
    }
}

#[test]
fn a_bound_is_one_unit_away() {
    let nearer = |low: &[u8], high, reverse, reach| rest(low, high, reverse).nearer(reach).map(|key| key.to_vec());
    assert_eq!(nearer(b"", None, false, 8), Some(vec![0, 0x80]));
    assert_eq!(nearer(b"abc", None, false, 8), Some(vec![b'a', b'b' + 0x80]));
    assert_eq!(nearer(b"a\xFFc", None, false, 15), Some(vec![b'b', 0]), "with a carry");
    assert_eq!(nearer(b"\xFF\xFF", None, false, 15), None, "no key is so far away");
    assert_eq!(nearer(b"a", Some(b"b"), false, 7), None, "as far away as the end");
    assert_eq!(nearer(b"a", None, true, 8), Some(vec![0xFF, 0x7F]), "from behind the last key");
    assert_eq!(nearer(b"a", Some(b"b"), true, 9), Some(vec![b'a', 0xC0]), "with a borrow");
    assert_eq!(nearer(b"", Some(b"\0"), true, 15), None, "no key is so far away");
}
