//! The format of `go tool pprof`, Pyroscope and Parca: a gzipped protobuf.
//!
//! The messages are those of `profile.proto` of github.com/google/pprof. A thread's name is the label `thread` of its
//! samples, and also the outermost function of their stacks, because other tools do not draw labels. Called by the
//! admin listener of `klad-server`, and by code that reads such files.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use prost::Message as _;

use crate::{Error, Name, Profile, Sample, ValueType, wire};

/// The largest profile that is read, bytes after unpacking: more than klad writes for 100,000 stacks. A larger one is
/// an error.
pub const UNPACKED_BYTES_MAX: u64 = 64 << 20;

/// The most frames that are read, in all stacks together. A small file can unpack to far more. Each takes 16 bytes, all
/// together 256 MiB.
const FRAMES_MAX: usize = 16 << 20;

/// The name of the comment that holds the title.
const TITLE: &str = "title";

const THREAD: &str = "thread";

/// Encodes a profile.
#[must_use]
pub fn encode(profile: &Profile<Name>) -> Vec<u8> {
    let packed = Writer::default().write(profile).encode_to_vec();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&packed).and_then(|()| gzip.finish()).expect("writing to memory cannot fail")
}

/// Assigns numbers to strings and functions.
#[derive(Default)]
struct Writer {
    profile: wire::Profile,
    strings: HashMap<String, i64>,
    locations: HashMap<Name, u64>,
}

impl Writer {
    fn write(mut self, profile: &Profile<Name>) -> wire::Profile {
        // The first string must be the empty one.
        self.string("");
        self.profile.sample_type = profile.values.iter().map(|value| self.value_type(value)).collect();
        let executable = std::env::current_exe().ok();
        let file = executable.as_ref().and_then(|path| path.to_str()).unwrap_or("klad");
        let filename = self.string(file);
        self.profile.mapping = vec![wire::Mapping { id: 1, filename, has_functions: true, ..wire::Mapping::default() }];
        let thread_key = self.string(THREAD);
        for sample in &profile.samples {
            let mut location_id: Vec<u64> = sample.frames.iter().map(|frame| self.location(frame)).collect();
            let mut label = Vec::new();
            if !sample.thread.is_empty() {
                location_id.push(self.location(&Name::from(sample.thread.as_str())));
                label.push(wire::Label { key: thread_key, str: self.string(&sample.thread), ..wire::Label::default() });
            }
            self.profile.sample.push(wire::Sample { location_id, value: sample.values.clone(), label });
        }
        let title = self.string(&format!("{TITLE}: {}", profile.title));
        self.profile.comment.push(title);
        for (name, value) in &profile.facts {
            let comment = self.string(&format!("{name}: {value}"));
            self.profile.comment.push(comment);
        }
        if let Some((kind, period)) = &profile.period {
            self.profile.period_type = Some(self.value_type(kind));
            self.profile.period = *period;
        }
        self.profile.time_nanos = i64::try_from(profile.began_unix_ns).unwrap_or(i64::MAX);
        self.profile.duration_nanos = i64::try_from(profile.duration.as_nanos()).unwrap_or(i64::MAX);
        let shown = profile.values.get(profile.shown).map_or("", |value| &value.kind);
        self.profile.default_sample_type = self.string(shown);
        self.profile
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = i64::try_from(self.profile.string_table.len()).expect("memory is smaller");
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn value_type(&mut self, value: &ValueType) -> wire::ValueType {
        wire::ValueType { kind: self.string(&value.kind), unit: self.string(&value.unit) }
    }

    /// Returns the location of a function. Addresses are not known here, so each function has one location.
    fn location(&mut self, name: &Name) -> u64 {
        if let Some(id) = self.locations.get(name) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(name.clone(), id);
        let text = self.string(name);
        // The system name is left empty: if both names are equal, Go's tools remove the text in brackets from one of
        // them.
        self.profile.function.push(wire::Function { id, name: text, ..wire::Function::default() });
        let line = vec![wire::Line { function_id: id, line: 0 }];
        self.profile.location.push(wire::Location { id, mapping_id: 1, line, ..wire::Location::default() });
        id
    }
}

/// Decodes a profile, gzipped or not, of klad, Go or other programs.
///
/// # Errors
/// [`Error::Malformed`], also if the profile is larger than [`UNPACKED_BYTES_MAX`], if it has more than 16 Mi frames,
/// or if the sum of its values exceeds 63 bits.
pub fn decode(bytes: &[u8]) -> Result<Profile<Name>, Error> {
    let unpacked = unpack(bytes)?;
    let profile = wire::Profile::decode(&*unpacked)
        .map_err(|error| Error::Malformed(format!("it is not a pprof protobuf: {error}")))?;
    Reader::new(&profile)?.read()
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut unpacked = Vec::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(bytes)
            .take(UNPACKED_BYTES_MAX + 1)
            .read_to_end(&mut unpacked)
            .map_err(|error| Error::Malformed(format!("it cannot be unpacked: {error}")))?;
    } else {
        unpacked.extend_from_slice(&bytes[..bytes.len().min(usize::try_from(UNPACKED_BYTES_MAX).unwrap_or(0) + 1)]);
    }
    if unpacked.len() as u64 > UNPACKED_BYTES_MAX {
        return Err(Error::Malformed(format!("it is larger than {UNPACKED_BYTES_MAX} bytes")));
    }
    Ok(unpacked)
}

/// Resolves numbers to names.
struct Reader<'p> {
    profile: &'p wire::Profile,
    /// The functions at each location, the innermost first.
    locations: HashMap<u64, Vec<Name>>,
    frames_left: usize,
}

impl<'p> Reader<'p> {
    fn new(profile: &'p wire::Profile) -> Result<Reader<'p>, Error> {
        let mut reader = Reader { profile, locations: HashMap::new(), frames_left: FRAMES_MAX };
        let mut functions = HashMap::with_capacity(profile.function.len());
        let mut names: HashMap<i64, Name> = HashMap::new();
        for function in &profile.function {
            let number = if function.name == 0 { function.system_name } else { function.name };
            let text = reader.string(number)?;
            functions.insert(function.id, names.entry(number).or_insert_with(|| Name::from(text)).clone());
        }
        let files: HashMap<u64, i64> = profile.mapping.iter().map(|mapping| (mapping.id, mapping.filename)).collect();
        for location in &profile.location {
            let known = |line: &wire::Line| functions.get(&line.function_id).cloned();
            let mut frames: Vec<Name> = location.line.iter().filter_map(known).collect();
            if frames.is_empty() {
                let file = reader.string(files.get(&location.mapping_id).copied().unwrap_or(0))?;
                let file = file.rsplit('/').next().unwrap_or_default();
                frames.push(match (file, location.address) {
                    ("", address) => format!("{address:#x}").into(),
                    (file, _) => format!("[{file}]").into(),
                });
            }
            reader.locations.insert(location.id, frames);
        }
        Ok(reader)
    }

    fn string(&self, number: i64) -> Result<&'p str, Error> {
        let found = usize::try_from(number).ok().and_then(|number| self.profile.string_table.get(number));
        match found {
            Some(text) => Ok(text),
            None if number == 0 => Ok(""),
            None => Err(Error::Malformed(format!("it has no string {number}"))),
        }
    }

    fn value_type(&self, value: &wire::ValueType) -> Result<ValueType, Error> {
        Ok(ValueType::new(self.string(value.kind)?, self.string(value.unit)?))
    }

    fn read(mut self) -> Result<Profile<Name>, Error> {
        let profile = self.profile;
        let values = profile.sample_type.iter().map(|value| self.value_type(value)).collect::<Result<Vec<_>, _>>()?;
        if values.is_empty() {
            return Err(Error::Malformed("it has no value types".to_owned()));
        }
        let samples =
            profile.sample.iter().map(|sample| self.sample(sample, values.len())).collect::<Result<Vec<_>, _>>()?;
        let shown = self.string(profile.default_sample_type)?;
        // Without a default, pprof uses the last value type.
        let shown = values.iter().position(|value| value.kind == shown).unwrap_or(values.len() - 1);
        let mut title = None;
        let mut facts = Vec::new();
        for comment in &profile.comment {
            match self.string(*comment)?.split_once(": ") {
                Some((TITLE, text)) => title = Some(text.to_owned()),
                Some((name, value)) => facts.push((name.to_owned(), value.to_owned())),
                None => facts.push(("comment".to_owned(), self.string(*comment)?.to_owned())),
            }
        }
        let period = match &profile.period_type {
            Some(kind) if kind.kind != 0 => Some((self.value_type(kind)?, profile.period)),
            _ => None,
        };
        let profile = Profile {
            title: title.unwrap_or_else(|| values[shown].kind.clone()),
            values,
            shown,
            samples,
            period,
            began_unix_ns: u64::try_from(profile.time_nanos).unwrap_or(0),
            duration: Duration::from_nanos(u64::try_from(profile.duration_nanos).unwrap_or(0)),
            facts,
        };
        profile.check_sums()?;
        Ok(profile)
    }

    fn sample(&mut self, sample: &wire::Sample, width: usize) -> Result<Sample<Name>, Error> {
        if sample.value.len() != width {
            return Err(Error::Malformed(format!("a sample has {} values, not {width}", sample.value.len())));
        }
        let mut frames = Vec::with_capacity(sample.location_id.len());
        for id in &sample.location_id {
            let here = self.locations.get(id);
            let here = here.ok_or_else(|| Error::Malformed(format!("it has no location {id}")))?;
            let left = self.frames_left.checked_sub(here.len());
            self.frames_left =
                left.ok_or_else(|| Error::Malformed("it has too many stacks, or its stacks are too deep".to_owned()))?;
            frames.extend_from_slice(here);
        }
        let mut thread = "";
        for label in &sample.label {
            if self.string(label.key)? == THREAD {
                thread = self.string(label.str)?;
            }
        }
        if !thread.is_empty() && frames.last().is_some_and(|root| **root == *thread) {
            frames.pop();
        }
        Ok(Sample { thread: thread.to_owned(), frames, values: sample.value.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{any_profile, example};

    proptest! {
        #[test]
        fn an_encoded_profile_is_decoded(profile in any_profile()) {
            let mut decoded = decode(&encode(&profile)).expect("encode writes valid profiles");
            // If two value types have the same name, the first one is found.
            decoded.shown = profile.shown;
            prop_assert_eq!(decoded, profile);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let mut packed = encode(&example());
            let at = bytes.len() % packed.len();
            packed.truncate(at);
            let _ = decode(&packed);
            let mut raw = Writer::default().write(&example()).encode_to_vec();
            for (byte, place) in bytes.iter().zip(bytes.iter().skip(1)) {
                let place = usize::from(*place) % raw.len();
                raw[place] = *byte;
            }
            let _ = decode(&raw);
        }
    }

    #[test]
    fn a_small_file_that_unpacks_to_a_large_one_is_an_error() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0; 1 << 20];
        for _ in 0..=UNPACKED_BYTES_MAX >> 20 {
            gzip.write_all(&zeros).expect("writing to memory cannot fail");
        }
        let packed = gzip.finish().expect("writing to memory cannot fail");
        assert!(packed.len() < 1 << 20);
        let error = decode(&packed).expect_err("too large").to_string();
        assert!(error.contains("larger than"), "{error}");
    }

    #[test]
    fn a_small_file_with_too_many_frames_is_an_error() {
        let mut profile = Writer::default().write(&example());
        let line = profile.location[0].line[0];
        profile.location[0].line = vec![line; 10_000];
        profile.sample[0].location_id = vec![1; 10_000];
        let error = decode(&profile.encode_to_vec()).expect_err("too many").to_string();
        assert!(error.contains("too deep"), "{error}");
    }

    #[test]
    fn missing_names_are_replaced() {
        let mut profile = Writer::default().write(&example());
        let strings = &mut profile.string_table;
        strings.push("/usr/lib/libx.so.1".to_owned());
        let file = i64::try_from(strings.len() - 1).expect("few");
        profile.mapping.push(wire::Mapping { id: 7, filename: file, ..wire::Mapping::default() });
        // A location with two functions, a location without a function, and a location without a file.
        let inlined = [profile.location[0].line[0], profile.location[1].line[0]];
        profile.location[0].line = inlined.to_vec();
        profile.location[1] = wire::Location { id: 2, mapping_id: 7, ..wire::Location::default() };
        profile.location.push(wire::Location { id: 99, address: 0xab, ..wire::Location::default() });
        profile.sample = vec![wire::Sample { location_id: vec![1, 2, 99], value: vec![1, 2], label: Vec::new() }];
        profile.default_sample_type = 0;
        profile.comment.clear();
        let decoded = decode(&profile.encode_to_vec()).expect("well formed");
        let frames: Vec<&str> = decoded.samples[0].frames.iter().map(|frame| &**frame).collect();
        assert_eq!(frames, ["f", "main", "[libx.so.1]", "0xab"]);
        assert_eq!((decoded.shown, decoded.title.as_str(), decoded.samples[0].thread.as_str()), (1, "cpu", ""));
    }
}
