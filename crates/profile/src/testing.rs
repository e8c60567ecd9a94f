//! Example profiles and generated profiles for tests.

use std::time::Duration;

use proptest::prelude::*;

use crate::{Name, Profile, Sample, ValueType};

/// Returns a profile with two stacks of one thread.
pub(crate) fn example() -> Profile<Name> {
    let sample = |frames: &[&str], values: [i64; 2]| Sample {
        thread: "worker".to_owned(),
        frames: frames.iter().map(|frame| Name::from(*frame)).collect(),
        values: values.to_vec(),
    };
    Profile {
        title: "CPU time".to_owned(),
        values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
        shown: 1,
        samples: vec![sample(&["f", "main"], [2, 20_000]), sample(&["g<T, [u8; 8]>", "main"], [1, 10_000])],
        period: Some((ValueType::new("cpu", "nanoseconds"), 10)),
        began_unix_ns: 1_000,
        duration: Duration::from_millis(30),
        facts: vec![("events".to_owned(), "3".to_owned()), ("sampling rate".to_owned(), "99 Hz".to_owned())],
    }
}

/// Generates profiles. Names of threads and frames are without `;` and spaces, which the text format cannot represent.
pub(crate) fn any_profile() -> impl Strategy<Value = Profile<Name>> {
    let word = "[a-zA-Z_:<>]{1,9}";
    let fact = ("fact [a-z]{1,8}", "[a-z0-9 ]{0,8}[a-z0-9]");
    let value_type = ("[a-z_]{1,9}", "[a-z]{1,9}").prop_map(|(kind, unit)| ValueType::new(&kind, &unit));
    (1_usize..4).prop_flat_map(move |width| {
        let frames = prop::collection::vec(word.prop_map(Name::from), 1..9);
        let values = prop::collection::vec(1..i64::MAX / 1_000, width);
        let sample =
            ("[a-z0-9]{1,15}", frames, values).prop_map(|(thread, frames, values)| Sample { thread, frames, values });
        (
            ("[A-Z][a-z]{1,9}", prop::collection::vec(value_type.clone(), width), 0..width),
            prop::collection::vec(sample, 0..20),
            prop::option::of((value_type.clone(), 1..i64::MAX)),
            (0..i64::MAX.cast_unsigned(), 0..i64::MAX.cast_unsigned()),
            prop::collection::vec(fact, 0..5),
        )
            .prop_map(|((title, values, shown), samples, period, (began_unix_ns, ns), facts)| Profile {
                title,
                values,
                shown,
                samples,
                period,
                began_unix_ns,
                duration: Duration::from_nanos(ns),
                facts,
            })
    })
}
