//! Lua scripts of wrk and wrk2, as they are: `request`, `response`, `setup`, `init`, `delay`, `done`, `wrk` and its functions.
//!
//! ```text
//!     the run's state ── setup(thread) ──▶ a state for each thread ── init(args), request(), delay(), response(…)
//!            ▲                                         │
//!            └──────────────── done(…), thread:get ────┘
//! ```
//!
//! As in wrk, every thread has a Lua state of its own, in which the whole script is run again: a counter in it counts the requests
//! of one thread. What wrk does in Lua is in `script.lua`; what its C does is here. Scripts are programs of whoever starts the
//! run, and may do what that user may. Called by `runner`.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use mlua::{
    AnyUserData, Function, Lua, LuaString, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value,
};

use crate::author::{Author, Written};
use crate::response::header_lines;
use crate::schedule::Nanos;
use crate::script_report;
use klad_base::sync::Mutex;

/// wrk's table, and what wrk does around the functions of a script.
const PRELUDE: &str = include_str!("script.lua");

/// What a script prints goes to the standard error.
const QUIET: &str = "
    io.stdout = io.stderr
    io.output(io.stderr)
    function print(...)
        for at = 1, select('#', ...) do io.write(at > 1 and '\\t' or '', tostring((select(at, ...)))) end
        io.write('\\n')
    end";

/// Tables within tables that may pass from one state to another.
const DEPTH_MAX: usize = 64;

/// For `wrk.connect`, and for the addresses that `wrk.addrs` holds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a script is told of the run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of the URL, without brackets.
    pub host: String,
    /// As it stands in the URL; `None`: it does not.
    pub port: Option<String>,
    /// Path and query.
    pub path: String,
    /// Names and values of `--header`.
    pub headers: Vec<(String, String)>,
    /// The URL, then what was given for the script.
    pub arguments: Vec<String>,
    /// Where threads connect to, unless the script says otherwise.
    pub address: SocketAddr,
    /// What the script prints must not get into the result: it goes to the standard error.
    pub quiet: bool,
}

/// A script that was loaded for every thread.
#[derive(Debug)]
pub struct Script {
    lua: Lua,
    threads: Vec<Arc<Thread>>,
    /// Requests of each start, as the first has them.
    pub pipeline: u32,
}

/// What both its own state and that of the run know of a thread.
#[derive(Debug)]
struct Thread {
    lua: Lua,
    address: Mutex<SocketAddr>,
    stopped: AtomicBool,
}

impl Script {
    /// Runs the script once for the run and once for each of `threads` threads, `setup` and `init` included; as in wrk, the first
    /// thread's `request` is called once more than it is sent, to see what it makes.
    ///
    /// # Errors
    /// When it cannot be read, fails, or makes no request.
    pub fn load(path: &Path, setting: &Setting, threads: usize) -> anyhow::Result<(Script, Vec<Box<dyn Author>>)> {
        let source = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.display().to_string();
        let load = || state(&source, &name, setting).map_err(failed);
        let lua = load()?;
        resolve(&lua, setting).map_err(failed)?;
        let mut script = Script { lua, threads: Vec::new(), pipeline: 1 };
        let mut authors: Vec<Box<dyn Author>> = Vec::new();
        for number in 0..threads {
            let address = Mutex::new(setting.address);
            let thread = Arc::new(Thread { lua: load()?, address, stopped: AtomicBool::new(false) });
            script.introduce(&thread, setting).map_err(failed)?;
            let mut author = LuaAuthor::new(thread.clone()).map_err(failed)?;
            if number == 0 {
                let mut first = Vec::new();
                let written = author.next(&mut first).map_err(|why| anyhow!(why))?;
                script.pipeline = written.map_or(1, |written| written.requests);
                ensure!(
                    written.is_none() || requests_in(&first).is_some(),
                    "the script's request is no HTTP request: {}",
                    String::from_utf8_lossy(&first[..first.len().min(200)]).escape_debug()
                );
            }
            script.threads.push(thread);
            authors.push(Box::new(author));
        }
        Ok((script, authors))
    }

    /// `setup` in the state of the run, then `init` in that of the thread.
    fn introduce(&self, thread: &Arc<Thread>, setting: &Setting) -> mlua::Result<()> {
        let own: Table = thread.lua.globals().get("wrk")?;
        own.set("thread", handle(&thread.lua, thread)?)?;
        let run: Table = self.lua.globals().get("wrk")?;
        run.get::<Function>("setup")?.call::<()>(handle(&self.lua, thread)?)?;
        let arguments = thread.lua.create_table()?;
        for (index, argument) in setting.arguments.iter().enumerate() {
            arguments.raw_set(index, argument.as_str())?;
        }
        own.get::<Function>("init")?.call(arguments)
    }

    /// Calls `done`, where there is one, and writes out what the script has printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn done(&self, report: &script_report::Report) -> anyhow::Result<()> {
        let call = || -> mlua::Result<()> {
            if let Value::Function(done) = self.lua.globals().get("done")? {
                let (summary, latency, requests) = report.in_lua(&self.lua)?;
                done.call::<()>((summary, latency, requests))?;
            }
            self.lua.load("io.stdout:flush()").exec()
        };
        call().map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` calls it")]
fn failed(error: mlua::Error) -> anyhow::Error {
    anyhow!("the script failed: {error}")
}

/// A state in which the script has run.
fn state(source: &[u8], name: &str, setting: &Setting) -> mlua::Result<Lua> {
    let lua = new_state();
    if setting.quiet {
        lua.load(QUIET).exec()?;
    }
    lua.load(PRELUDE).set_name("=wrk").exec()?;
    let wrk: Table = lua.globals().get("wrk")?;
    wrk.set("host", setting.host.as_str())?;
    wrk.set("port", setting.port.as_deref())?;
    wrk.set("path", setting.path.as_str())?;
    let headers: Table = wrk.get("headers")?;
    for (name, value) in &setting.headers {
        headers.set(name.as_str(), value.as_str())?;
    }
    wrk.set("lookup", lua.create_function(|_, (host, service): (String, String)| lookup(&host, &service))?)?;
    wrk.set("connect", lua.create_function(|_, address: AnyUserData| connects(&address))?)?;
    lua.load(source).set_name(format!("@{name}")).exec()?;
    Ok(lua)
}

#[expect(unsafe_code, reason = "LuaJIT with all of its libraries")]
fn new_state() -> Lua {
    // SAFETY: what `ffi`, `debug` and modules in C can do to this process, the user who gave the script can do without it: a
    // script is a program of that user. wrk gives scripts these libraries too, and scripts in the field use them.
    unsafe { Lua::unsafe_new() }
}

/// Fills `wrk.addrs`. The one that klad itself has reached stands first.
fn resolve(lua: &Lua, setting: &Setting) -> mlua::Result<()> {
    let wrk: Table = lua.globals().get("wrk")?;
    let service = setting.port.clone().unwrap_or_else(|| "http".to_owned());
    wrk.get::<Function>("resolve")?.call::<()>((setting.host.as_str(), service))?;
    let addresses: Table = wrk.get("addrs")?;
    if addresses.raw_len() == 0 {
        addresses.push(lua.create_userdata(Address(setting.address))?)?;
    }
    Ok(())
}

fn lookup(host: &str, service: &str) -> mlua::Result<Vec<Address>> {
    let port = match service {
        "http" => 80,
        "https" => 443,
        number => number.parse().map_err(|_| mlua::Error::runtime(format!("{service:?} is no port")))?,
    };
    let found =
        (host, port).to_socket_addrs().map_err(|why| mlua::Error::runtime(format!("cannot find {host}: {why}")))?;
    Ok(found.map(Address).collect())
}

fn connects(address: &AnyUserData) -> mlua::Result<bool> {
    let Address(address) = *address.borrow::<Address>()?;
    Ok(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// What wrk gives for a field that an object of its own does not have: the field's name.
pub(super) fn unknown<T>(lua: &Lua, _: &T, name: Value) -> mlua::Result<Option<LuaString>> {
    lua.coerce_string(name)
}

/// What `wrk.lookup` finds.
struct Address(SocketAddr);

impl UserData for Address {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| Ok(this.0.to_string()));
    }
}

/// A thread, as scripts see it. Its own state has one, so that it must not keep the thread.
struct Handle(Weak<Thread>);

fn handle(lua: &Lua, thread: &Arc<Thread>) -> mlua::Result<AnyUserData> {
    lua.create_userdata(Handle(Arc::downgrade(thread)))
}

impl Handle {
    fn thread(&self) -> mlua::Result<Arc<Thread>> {
        self.0.upgrade().ok_or_else(|| mlua::Error::runtime("the thread is gone"))
    }
}

impl UserData for Handle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, this| Ok(Address(*this.thread()?.address.lock())));
        fields.add_field_method_set("addr", |_, this, address: AnyUserData| {
            *this.thread()?.address.lock() = address.borrow::<Address>()?.0;
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Index, unknown);
        methods.add_method("get", |lua, this, name: LuaString| {
            let thread = this.thread()?;
            let theirs = &thread.lua;
            let value: Value = theirs.globals().get(theirs.create_string(name.as_bytes())?)?;
            Plain::of(&value, 0)?.into_value(lua)
        });
        methods.add_method("set", |_, this, (name, value): (LuaString, Value)| {
            let thread = this.thread()?;
            let theirs = &thread.lua;
            let (name, value) = (Plain::string(&name), Plain::of(&value, 0)?.into_value(theirs)?);
            theirs.globals().set(theirs.create_string(name)?, value)
        });
        methods.add_method("stop", |_, this, ()| {
            this.thread()?.stopped.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

/// A value on its way from one state to another.
enum Plain {
    Nil,
    Boolean(bool),
    Integer(mlua::Integer),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(Plain, Plain)>),
    Address(SocketAddr),
}

impl Plain {
    fn string(text: &LuaString) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn of(value: &Value, depth: usize) -> mlua::Result<Plain> {
        Ok(match value {
            Value::Nil => Plain::Nil,
            Value::Boolean(value) => Plain::Boolean(*value),
            Value::Integer(value) => Plain::Integer(*value),
            Value::Number(value) => Plain::Number(*value),
            Value::String(value) => Plain::Text(Plain::string(value)),
            Value::Table(_) if depth == DEPTH_MAX => {
                return Err(mlua::Error::runtime("a table in itself cannot pass from one thread to another"));
            }
            Value::Table(table) => {
                let mut pairs = Vec::new();
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pairs.push((Plain::of(&key, depth + 1)?, Plain::of(&value, depth + 1)?));
                }
                Plain::Table(pairs)
            }
            Value::UserData(data) if data.is::<Address>() => Plain::Address(data.borrow::<Address>()?.0),
            other => {
                let kind = other.type_name();
                return Err(mlua::Error::runtime(format!("a {kind} cannot pass from one thread to another")));
            }
        })
    }

    fn into_value(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Plain::Nil => Value::Nil,
            Plain::Boolean(value) => Value::Boolean(value),
            Plain::Integer(value) => Value::Integer(value),
            Plain::Number(value) => Value::Number(value),
            Plain::Text(value) => Value::String(lua.create_string(value)?),
            Plain::Address(address) => Value::UserData(lua.create_userdata(Address(address))?),
            Plain::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.into_value(lua)?, value.into_value(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}

/// A script as the author of one thread's requests.
#[derive(Debug)]
struct LuaAuthor {
    thread: Arc<Thread>,
    requests: Source,
    wants_answers: bool,
    delays: bool,
}

#[derive(Debug)]
enum Source {
    /// The script makes each, by the function that its name stands for at that time.
    Each,
    /// It is the same each time.
    Always { bytes: Vec<u8>, written: Written },
}

impl LuaAuthor {
    fn new(thread: Arc<Thread>) -> mlua::Result<LuaAuthor> {
        let globals = thread.lua.globals();
        let is_function = |name: &str| -> mlua::Result<bool> { Ok(matches!(globals.get(name)?, Value::Function(_))) };
        let requests = if is_function("request")? {
            Source::Each
        } else {
            let always: Function = globals.get::<Table>("wrk")?.get("request")?;
            let bytes = always.call::<LuaString>(())?.as_bytes().to_vec();
            let written = requests_in(&bytes).unwrap_or(Written { requests: 1, bodiless: 0 });
            Source::Always { bytes, written }
        };
        let (wants_answers, delays) = (is_function("response")?, is_function("delay")?);
        Ok(LuaAuthor { thread, requests, wants_answers, delays })
    }

    /// A function of the script, as it is now: scripts put others in their places while they run.
    fn now(&self, name: &str) -> mlua::Result<Option<Function>> {
        Ok(match self.thread.lua.globals().get(name)? {
            Value::Function(function) => Some(function),
            _ => None,
        })
    }

    /// What `request` returns, or `wrk.request` where it is no function any more.
    fn made(&self) -> mlua::Result<Value> {
        let request = match self.now("request")? {
            Some(request) => request,
            None => self.thread.lua.globals().get::<Table>("wrk")?.get("request")?,
        };
        request.call(())
    }
}

impl Author for LuaAuthor {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Written>, String> {
        match &self.requests {
            Source::Always { bytes, written } => {
                into.extend_from_slice(bytes);
                Ok(Some(*written))
            }
            Source::Each => {
                let made = self.made().map_err(|error| format!("request() failed: {error}"))?;
                if made.is_nil() && self.has_stopped() {
                    return Ok(None);
                }
                let kind = made.type_name();
                // A number is its digits.
                let Ok(Some(made)) = self.thread.lua.coerce_string(made) else {
                    return Err(format!("request() returned a {kind}, not the text of a request"));
                };
                let begin = into.len();
                into.extend_from_slice(&made.as_bytes());
                // What is no request is sent all the same: to see what the server makes of it may be the point.
                Ok(Some(requests_in(&into[begin..]).unwrap_or(Written { requests: 1, bodiless: 0 })))
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float as an integer saturates; NaN is 0"
    )]
    fn delay(&mut self) -> Result<Option<Nanos>, String> {
        if !self.delays {
            return Ok(None);
        }
        let call = || -> mlua::Result<Option<f64>> {
            self.now("delay")?.map_or(Ok(None), |delay| delay.call::<Option<f64>>(()))
        };
        let millis = call().map_err(|error| format!("delay() failed: {error}"))?;
        // Whole milliseconds, as wrk takes them; nothing is none.
        Ok(Some((millis.unwrap_or(0.0) as u64).saturating_mul(1_000_000)))
    }

    fn wants_answers(&self) -> bool {
        self.wants_answers
    }

    fn answered(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), String> {
        let lua = &self.thread.lua;
        let call = || -> mlua::Result<()> {
            let Some(response) = self.now("response")? else { return Ok(()) };
            let headers = lua.create_table()?;
            for (name, value) in header_lines(head) {
                headers.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
            }
            response.call((status, headers, lua.create_string(body)?))
        };
        call().map_err(|error| format!("response() failed: {error}"))
    }

    fn has_stopped(&self) -> bool {
        self.thread.stopped.load(Ordering::Relaxed)
    }

    fn address(&self) -> SocketAddr {
        *self.thread.address.lock()
    }
}

/// The requests that follow each other in `bytes`; `None` when they are not whole HTTP/1 requests.
fn requests_in(mut bytes: &[u8]) -> Option<Written> {
    let mut written = Written { requests: 0, bodiless: 0 };
    while !bytes.is_empty() {
        let mut headers = vec![httparse::EMPTY_HEADER; 16];
        let (request, head) = loop {
            // As many as there may be lines.
            let (count, lines) = (headers.len(), memchr::memchr_iter(b'\n', bytes).count());
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(bytes) {
                Ok(httparse::Status::Complete(head)) => break (request, head),
                Err(httparse::Error::TooManyHeaders) if count < lines => headers.resize(lines, httparse::EMPTY_HEADER),
                _ => return None,
            }
        };
        if request.method == Some("HEAD") {
            written.bodiless |= 1_u64.checked_shl(written.requests).unwrap_or(0);
        }
        written.requests += 1;
        let named = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        if named("Transfer-Encoding").is_some() {
            // Where it ends only its chunks say; nothing is looked for behind it.
            return Some(written);
        }
        let length = match named("Content-Length") {
            Some(length) => std::str::from_utf8(length.value).ok()?.trim().parse().ok()?,
            None => 0,
        };
        bytes = bytes.get(head..)?.get(length..)?;
    }
    (written.requests > 0).then_some(written)
}

#[cfg(test)]
mod tests;
