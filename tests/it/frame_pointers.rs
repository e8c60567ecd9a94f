//! The CPU profiler walks frame pointers, so functions of klad and of RocksDB must keep them. If a compiler flag
//! changes, profiles look right and lack callers. Therefore this test disassembles the program.
//!
//! It checks functions that call others. Compilers omit the frame of a function that calls none and needs no stack,
//! in spite of the flag. A sample in such a function lacks its caller, and the rest of the stack is right.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Minimum share of functions with a frame among those that call others. Some code runs in the frame of its caller.
const SHARE_MIN: f64 = 0.95;

/// Owners of functions, and the minimum number of their functions that call others.
#[cfg(feature = "rocksdb")]
const OWNERS: [(&str, usize); 2] = [("klad", 300), ("rocksdb", 3_000)];
#[cfg(not(feature = "rocksdb"))]
const OWNERS: [(&str, usize); 1] = [("klad", 300)];

/// Recognises a call and the two steps that make a frame: `push %rbp`, then `mov %rsp,%rbp`.
#[cfg(target_arch = "x86_64")]
mod machine {
    pub(super) fn is_call(mnemonic: &str) -> bool {
        mnemonic.starts_with("call")
    }

    pub(super) fn saves(mnemonic: &str, operands: &str) -> bool {
        mnemonic.starts_with("push") && operands == "%rbp"
    }

    pub(super) fn sets(mnemonic: &str, operands: &str) -> bool {
        mnemonic.starts_with("mov") && operands == "%rsp,%rbp"
    }
}

/// The same for aarch64: `stp x29, x30, [sp, …]`, then `mov x29, sp` or `add x29, sp, …`.
#[cfg(target_arch = "aarch64")]
mod machine {
    pub(super) fn is_call(mnemonic: &str) -> bool {
        matches!(mnemonic, "bl" | "blr")
    }

    pub(super) fn saves(mnemonic: &str, operands: &str) -> bool {
        mnemonic == "stp" && operands.starts_with("x29, x30, [sp")
    }

    pub(super) fn sets(mnemonic: &str, operands: &str) -> bool {
        matches!(mnemonic, "mov" | "add") && operands.starts_with("x29, sp")
    }
}

/// For each owner, the number of functions that call others, and the names of those without a frame.
type Found = BTreeMap<&'static str, (usize, Vec<String>)>;

/// The current function of the disassembly.
#[derive(Default)]
struct Function {
    owner: Option<(&'static str, String)>,
    calls: bool,
    saves: bool,
    sets: bool,
}

impl Function {
    /// Begins the function with the name `mangled`.
    fn new(mangled: &str) -> Function {
        Function { owner: owner(mangled), ..Function::default() }
    }

    fn take(&mut self, instruction: &str) {
        // A comment names the target of an address.
        let instruction = instruction.split('#').next().unwrap_or_default().trim();
        let (mnemonic, operands) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
        let operands = operands.trim();
        self.calls |= machine::is_call(mnemonic);
        self.saves |= machine::saves(mnemonic, operands);
        self.sets |= self.saves && machine::sets(mnemonic, operands);
    }

    fn end(self, found: &mut Found) {
        let Some((owner, name)) = self.owner.filter(|_| self.calls) else { return };
        let (functions, without) = found.entry(owner).or_default();
        *functions += 1;
        if !self.sets {
            without.push(name);
        }
    }
}

/// Returns owner and name of a function; `None` for parts split off by the compiler, which run in the frame of the
/// whole.
fn owner(mangled: &str) -> Option<(&'static str, String)> {
    if mangled.contains(".cold") {
        return None;
    }
    if mangled.starts_with("_ZN") && mangled.contains("7rocksdb") {
        return Some(("rocksdb", mangled.to_owned()));
    }
    let name = format!("{:#}", rustc_demangle::try_demangle(mangled).ok()?);
    name.trim_start_matches('<').starts_with("klad").then_some(("klad", name))
}

/// Parses the output of `objdump -d --no-show-raw-insn`.
fn read(text: impl BufRead) -> Found {
    let mut found = Found::new();
    let mut function = Function::default();
    for line in text.lines() {
        let line = line.unwrap();
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            std::mem::replace(&mut function, Function::new(name.1)).end(&mut found);
        } else if let Some((_, instruction)) = line.split_once(":\t").filter(|_| function.owner.is_some()) {
            function.take(instruction);
        }
    }
    function.end(&mut found);
    found
}

/// Returns the faults of the functions; `owners` has the minimum number of each owner's functions.
fn faults(found: &Found, owners: &[(&'static str, usize)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (owner, functions_min) in owners {
        let (functions, without) = found.get(owner).cloned().unwrap_or_default();
        if functions < *functions_min {
            faults.push(format!("{functions} functions of {owner} are too few to judge"));
            continue;
        }
        let share = f64::from(u32::try_from(without.len()).unwrap()) / f64::from(u32::try_from(functions).unwrap());
        if share > 1.0 - SHARE_MIN {
            let some = without.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
            faults.push(format!("{} of {functions} functions of {owner} have no frame: {some}", without.len()));
        }
    }
    faults
}

#[test]
fn functions_of_klad_and_rocksdb_set_their_frame_pointers() {
    let mut command = Command::new("objdump");
    command.args(["-d", "--no-show-raw-insn", env!("CARGO_BIN_EXE_klad")]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("objdump is part of binutils, which the compiler needs");
    let found = read(BufReader::with_capacity(1 << 20, child.stdout.take().unwrap()));
    assert!(child.wait().unwrap().success());
    for (owner, (functions, without)) in &found {
        println!("{owner}: {functions} functions that call others, {} without a frame", without.len());
    }
    assert_eq!(faults(&found, &OWNERS), Vec::<String>::new());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn twin_functions_without_frame_pointers_are_noticed() {
    const WITH: &str = "\
0000000000001000 <_ZN7rocksdb6DBImpl5WriteEv>:
    1000:\tendbr64
    1004:\tpush   %rbp
    1005:\txor    %eax,%eax
    1007:\tmov    %rsp,%rbp
    100a:\tcall   2000 <_ZN7rocksdb6DBImpl9WriteImplEv>
    100f:\tpop    %rbp
    1010:\tret
";
    // Without the flag, `rbp` is an ordinary register.
    const WITHOUT: &str = "\
0000000000001020 <_ZN7rocksdb6DBImpl3GetEv>:
    1020:\tpush   %rbp
    1021:\tmov    %rdi,%rbp
    1024:\tcall   *0x10(%rax)
    1027:\tpop    %rbp
    1028:\tret
";
    // One function calls no other; one is a part of another.
    const LEFT_OUT: &str = "\
0000000000001030 <_ZN7rocksdb6DBIter3keyEv>:
    1030:\tmov    0x1f0(%rdi),%rdx
    1037:\tret
0000000000001040 <_ZN7rocksdb6DBImpl5WriteEv.cold>:
    1040:\tcall   3000 <__cxa_throw@plt>
0000000000001050 <main>:
    1050:\tcall   1000 <_ZN7rocksdb6DBImpl5WriteEv>
";
    let judge = |text: &str| {
        let found = read(text.as_bytes());
        (found.get("rocksdb").map_or(0, |(functions, _)| *functions), faults(&found, &[("rocksdb", 1)]).len())
    };
    assert_eq!(judge(&[WITH, LEFT_OUT].concat()), (1, 0));
    assert_eq!(judge(&WITH.repeat(20)), (20, 0));
    assert_eq!(judge(&[&WITH.repeat(18), WITHOUT].concat()), (19, 1), "one in 19 is too many");
    assert_eq!(judge(&[&WITH.repeat(20), WITHOUT].concat()), (21, 0), "one in 21 is allowed");
    assert_eq!(judge(LEFT_OUT), (0, 1), "there are no functions to check");
}
