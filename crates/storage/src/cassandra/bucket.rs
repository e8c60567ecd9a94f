//! The bucket of a key: the Cassandra partition that holds the key. Only the key and the number of buckets determine
//! the bucket, so the number of buckets never changes after `klad cluster init`.
//!
//! Keys of one directory (the key up to and including its last `/`) share a bucket. So their order is the order of one
//! partition, and an atomic batch of such keys is one write of one partition. A key without `/` chooses its bucket by
//! the whole key, so that a flat key space spreads over all buckets.

use xxhash_rust::xxh3::xxh3_64;

/// The part of `key` that chooses the bucket.
pub(super) fn directory(key: &[u8]) -> &[u8] {
    key.iter().rposition(|byte| *byte == b'/').map_or(key, |slash| &key[..=slash])
}

/// Returns the bucket of `key`, from 0 to `buckets` - 1. Never change this function, because klad would not find stored
/// keys any more.
pub(super) fn of(key: &[u8], buckets: u32) -> i32 {
    let bucket = xxh3_64(directory(key)) % u64::from(buckets);
    i32::try_from(bucket).expect("there are at most BUCKETS_MAX buckets")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_a_directory_share_a_bucket() {
        for keys in [["a/1", "a/2"], ["a/b/1", "a/b/"], ["/x", "/y"], ["users/7/name", "users/7/mail"]] {
            assert_eq!(of(keys[0].as_bytes(), 1_000), of(keys[1].as_bytes(), 1_000), "{keys:?}");
        }
    }

    #[test]
    fn keys_without_a_directory_and_directories_spread() {
        for form in ["key", "dir/"] {
            let buckets: HashSet<i32> =
                (0..1_000).map(|number| of(format!("{form}{number}/x").as_bytes(), 64)).collect();
            assert_eq!(buckets.len(), 64);
        }
        let flat: HashSet<i32> = (0..1_000).map(|number| of(format!("key{number}").as_bytes(), 64)).collect();
        assert_eq!(flat.len(), 64);
    }

    /// These values are in the tables of running clusters.
    #[test]
    fn buckets_never_change() {
        let found: Vec<i32> =
            ["a", "key1", "a/", "a/b", "users/7/name", "\u{0}"].iter().map(|key| of(key.as_bytes(), 64)).collect();
        assert_eq!(found, [31, 34, 63, 63, 34, 27]);
    }

    proptest! {
        #[test]
        fn every_key_has_a_bucket(key in prop::collection::vec(any::<u8>(), 0..50), buckets in 1_u32..5_000) {
            let bucket = of(&key, buckets);
            prop_assert!((0..i32::try_from(buckets).expect("small")).contains(&bucket));
        }
    }
}
