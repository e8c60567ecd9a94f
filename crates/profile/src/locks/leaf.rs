//! Names the first frame of a stack after the function that the thread has called, instead of klad's implementation
//! of it.
//!
//! POSIX functions already have their own names, because `sampling::pthread` defines them. The functions of `sync`
//! that take a lock are inlined. If the lock is taken, they call another function that waits, such as
//! `lock_contended`. This module renames it to the called function, `lock`.
//!
//! Called by `locks`.

use crate::{Name, Profile};

/// The type, the waiting method of `sync`, and the name of the called method.
const KNOWN_AS: [(&str, &str, &str); 5] = [
    ("klad_base::sync::Mutex", "lock_contended", "klad_base::sync::Mutex::lock"),
    ("klad_base::sync::RwLock", "read_contended", "klad_base::sync::RwLock::read"),
    ("klad_base::sync::RwLock", "write_contended", "klad_base::sync::RwLock::write"),
    ("klad_base::sync::Condvar", "wait", "klad_base::sync::Condvar::wait"),
    ("klad_base::sync::Condvar", "wait_timeout", "klad_base::sync::Condvar::wait_timeout"),
];

/// Renames the first frame of each stack to the called function, if [`KNOWN_AS`] has it.
pub(super) fn as_called(mut profile: Profile<Name>) -> Profile<Name> {
    for sample in &mut profile.samples {
        if let Some(first) = sample.frames.first_mut()
            && let Some(known) = known_as(first)
        {
            *first = known.into();
        }
    }
    profile
}

fn known_as(name: &str) -> Option<&'static str> {
    KNOWN_AS.iter().find(|(owner, method, _)| is_of(name, owner, method)).map(|(_, _, known)| *known)
}

/// Returns whether `name` is the method of this type. Type parameters do not matter: compilers write both
/// `klad_base::sync::Mutex<T>::lock` and `<klad_base::sync::Mutex<u8>>::lock::<u8>`.
fn is_of(name: &str, owner: &str, method: &str) -> bool {
    let rest = name.strip_prefix('<').unwrap_or(name).strip_prefix(owner);
    rest.is_some_and(|rest| rest.starts_with(['<', '>', ':']) && rest.split("::").any(|part| part == method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_functions_are_renamed_to_the_called_ones() {
        let known = |name| known_as(name).unwrap_or("none");
        assert_eq!(known("klad_base::sync::Mutex<T>::lock_contended"), "klad_base::sync::Mutex::lock");
        assert_eq!(known("<klad_base::sync::Mutex<u8>>::lock_contended"), "klad_base::sync::Mutex::lock");
        assert_eq!(known("klad_base::sync::RwLock<T>::read_contended"), "klad_base::sync::RwLock::read");
        assert_eq!(known("klad_base::sync::RwLock<T>::write_contended"), "klad_base::sync::RwLock::write");
        assert_eq!(known("klad_base::sync::Condvar::wait"), "klad_base::sync::Condvar::wait");
        assert_eq!(known("<klad_base::sync::Condvar>::wait_timeout::<u8>"), "klad_base::sync::Condvar::wait_timeout");
    }

    #[test]
    fn twin_similar_names_are_not_renamed() {
        for name in
            ["pthread_mutex_lock", "klad_base::sync::Mutexes::lock_contended", "a::Mutex<T>::lock_contended", "wait"]
        {
            assert_eq!(known_as(name), None, "{name}");
        }
        assert_eq!(known_as("klad_base::sync::Mutex<T>::try_lock"), None);
    }
}
