//! Numbers as reports show them. Called by the chores.

/// Bytes in MiB with one digit after the point, rounded down: `345.6 MiB`.
pub(crate) fn mebibytes(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10 / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// A count in groups of three digits: `5,000,000`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(mebibytes((345 << 20) + (6 << 20) / 10 + 1), "345.6 MiB");
        assert_eq!(mebibytes(u64::MAX), "17592186044415.9 MiB");
        assert_eq!(["0", "999", "1,000", "5,000,000"], [0, 999, 1000, 5_000_000].map(grouped).each_ref().map(|s| &**s));
    }
}
