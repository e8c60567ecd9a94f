//! The options with which klad reaches a Cassandra cluster, and `klad cluster`, which makes klad's keyspace in the
//! cluster and shows the state of both.
//!
//! Results go to stdout, as text or JSON; errors go to stderr. `cli` has the options of `klad serve`; `config` and
//! `main` call the rest.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use klad_base::os::output;
use klad_storage::cassandra::{self, Ask, BUCKETS_MAX, BadName, Contact, Keyspace, Node, OpenError, Replication};
use klad_storage::operation::Consistency;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

const HEADING: &str = "Cassandra cluster";

/// The shortest and the longest `--request-timeout`.
const TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));

/// How to reach the cluster.
#[derive(Args, Clone, Debug)]
pub struct ContactArgs {
    /// Nodes of the Cassandra cluster, separated by commas. klad learns of all other nodes from them.
    ///
    /// Without a port klad uses 9042. Name at least two nodes, so that klad can start while one is down. --engine
    /// cassandra needs this option.
    #[arg(long, value_name = "HOST[:PORT],...", help_heading = HEADING)]
    pub contact_points: Option<String>,
    /// Send requests to the nodes of this data centre, and to other nodes only if these nodes do not answer.
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    pub local_datacenter: Option<String>,
    /// Keep the data in this keyspace. `klad cluster init` makes it.
    #[arg(long, value_name = "NAME", default_value = "klad", help_heading = HEADING)]
    pub keyspace: String,
    /// Maximum time that the cluster has for one request.
    ///
    /// After this time a read fails, and the outcome of a write is unknown. Set --request-timeout above the timeouts of
    /// the cluster itself (2 s for writes), because an error of the cluster says how many copies have answered.
    ///
    /// Range: 100ms to 1m.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = timeout, help_heading = HEADING)]
    pub request_timeout: Duration,
    /// Authenticate to the cluster with this user name. --cluster-user needs --cluster-password-file too.
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    pub cluster_user: Option<String>,
    /// File whose first line is the password of --cluster-user.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub cluster_password_file: Option<PathBuf>,
    /// Speak TLS to the nodes, and accept certificates that the authorities in this file have signed, PEM.
    ///
    /// The certificate of a node must contain its address. Without this option klad speaks to the nodes without
    /// encryption.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub cluster_ca: Option<PathBuf>,
}

/// The options of `klad serve --engine cassandra`.
#[derive(Args, Clone, Debug)]
pub struct ServeClusterArgs {
    /// How to reach the cluster.
    #[command(flatten)]
    pub contact: ContactArgs,
    /// Copies that must answer a request, unless the request itself names a consistency.
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = ConsistencyName::Quorum, help_heading = HEADING)]
    pub consistency: ConsistencyName,
    /// Copies that must agree on a conditional write.
    ///
    /// All klad processes that use one keyspace must have the same level.
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value_t = SerialConsistencyName::Serial,
        help_heading = HEADING
    )]
    pub serial_consistency: SerialConsistencyName,
}

/// Values of `--consistency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyName {
    /// One copy. A read may miss a write that was acknowledged before.
    One,
    /// A majority of all copies.
    Quorum,
    /// A majority of the copies in the data centre of --local-datacenter.
    #[value(name = "local_quorum")]
    LocalQuorum,
    /// All copies. Requests fail while one is down.
    All,
    /// Like quorum, and all requests of a key have one order, because every write is a lightweight transaction.
    Serial,
}

/// Values of `--serial-consistency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SerialConsistencyName {
    /// A majority of all copies.
    Serial,
    /// A majority of the copies in the data centre of --local-datacenter.
    #[value(name = "local_serial")]
    LocalSerial,
}

/// Subcommands of `klad cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make klad's keyspace and its tables in a Cassandra cluster, unless they exist.
    Init {
        /// How to reach the cluster.
        #[command(flatten)]
        contact: ContactArgs,
        /// The number of copies in each data centre, for example dc1:3 or dc1:3,dc2:3.
        #[arg(long, value_name = "NAME:N,...", value_delimiter = ',', required = true, value_parser = replication)]
        replication: Vec<Replication>,
        /// The number of buckets, over which klad spreads the keys. The number cannot change later.
        ///
        /// Each bucket is one partition of Cassandra, which should stay below 1 GB. Each scan asks all buckets.
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(BUCKETS_MAX)))]
        buckets: u32,
    },
    /// Show the nodes of a Cassandra cluster, and klad's keyspace.
    Status {
        /// How to reach the cluster.
        #[command(flatten)]
        contact: ContactArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Why the options are wrong, or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No contact point was given.
    #[error("--engine cassandra and klad cluster need --contact-points HOST[:PORT],...")]
    NoContactPoints,
    /// The name of the keyspace would need quotes.
    #[error("--keyspace: {0}")]
    Keyspace(#[from] BadName),
    /// A user name without a password, or a password without a user name.
    #[error("--cluster-user and --cluster-password-file need each other")]
    HalfOfUser,
    /// A level of one data centre, such as `local_quorum`, without the name of the data centre.
    #[error("--{option} {level} needs --local-datacenter as well")]
    NoDatacenter {
        /// Name of the option, without the dashes.
        option: &'static str,
        /// The given level.
        level: &'static str,
    },
    /// A file cannot be used.
    #[error("--{option} {}: {why}", path.display())]
    File {
        /// Name of the option, without the dashes.
        option: &'static str,
        /// The given path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster or the keyspace cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The output could not be printed.
    #[error("cannot write the output: {0}")]
    NotPrinted(io::Error),
}

impl ContactArgs {
    /// Checks the options, and reads the files that they name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn contact(&self) -> Result<Contact, Error> {
        let points = self.contact_points.as_deref().unwrap_or_default();
        let points: Vec<String> =
            points.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
        if points.is_empty() {
            return Err(Error::NoContactPoints);
        }
        let mut contact =
            Contact::new(&points, self.local_datacenter.clone(), self.keyspace.clone(), self.request_timeout)?;
        match (&self.cluster_user, &self.cluster_password_file) {
            (None, None) => {}
            (Some(user), Some(path)) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| bad_file("cluster-password-file", path, &error))?;
                contact = contact.with_user(user.clone(), text.lines().next().unwrap_or_default().to_owned());
            }
            _ => return Err(Error::HalfOfUser),
        }
        if let Some(path) = &self.cluster_ca {
            contact = with_tls(contact, path)?;
        }
        Ok(contact)
    }
}

impl ServeClusterArgs {
    /// Checks the levels.
    ///
    /// # Errors
    /// [`Error::NoDatacenter`].
    pub fn ask(&self) -> Result<Ask, Error> {
        let local = |option, level| match self.contact.local_datacenter {
            Some(_) => Ok(()),
            None => Err(Error::NoDatacenter { option, level }),
        };
        let consistency = match self.consistency {
            ConsistencyName::One => Consistency::One,
            ConsistencyName::Quorum => Consistency::Quorum,
            ConsistencyName::LocalQuorum => {
                local("consistency", "local_quorum")?;
                Consistency::LocalQuorum
            }
            ConsistencyName::All => Consistency::All,
            ConsistencyName::Serial => Consistency::Serial,
        };
        let local_serial = self.serial_consistency == SerialConsistencyName::LocalSerial;
        if local_serial {
            local("serial-consistency", "local_serial")?;
        }
        Ok(Ask { consistency, local_serial })
    }
}

/// Speaks TLS, and trusts the authorities in a file.
fn with_tls(contact: Contact, path: &Path) -> Result<Contact, Error> {
    let wrong = |why: &dyn std::fmt::Display| bad_file("cluster-ca", path, why);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))? {
        roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"contains no certificate"));
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what TLS 1.2 and 1.3 need")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(contact.with_tls(std::sync::Arc::new(config)))
}

fn bad_file(option: &'static str, path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::File { option, path: path.to_owned(), why: why.to_string() }
}

fn timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if (TIMEOUTS.0..=TIMEOUTS.1).contains(&time) => Ok(time),
        Ok(_) => Err("must be from 100ms to 1m".to_owned()),
        Err(error) => Err(format!("{error}; use for example 500ms or 3s")),
    }
}

fn replication(text: &str) -> Result<Replication, String> {
    let wrong = || "must be the name of a data centre and the number of its copies, such as dc1:3".to_owned();
    let (datacenter, copies) = text.rsplit_once(':').ok_or_else(wrong)?;
    let copies = copies.parse().ok().filter(|copies| (1..=10).contains(copies)).ok_or_else(wrong)?;
    if datacenter.is_empty() { Err(wrong()) } else { Ok(Replication { datacenter: datacenter.to_owned(), copies }) }
}

/// Runs a command.
///
/// # Errors
/// [`Error`].
pub fn run(command: &ClusterCommand) -> Result<(), Error> {
    match command {
        ClusterCommand::Init { contact, replication, buckets } => {
            let keyspace = cassandra::init(&contact.contact()?, replication, *buckets)?;
            let name = &contact.keyspace;
            print(&format!("keyspace {name} is ready: {}\n", keyspace_in_words(&keyspace)))
        }
        ClusterCommand::Status { contact, json } => {
            let (nodes, keyspace) = cassandra::status(&contact.contact()?)?;
            if *json {
                print(&format!("{:#}\n", status_as_json(&contact.keyspace, &nodes, keyspace.as_ref().ok())))?;
            } else {
                print(&status_in_words(&contact.keyspace, &nodes, keyspace.as_ref().ok()))?;
            }
            keyspace.map(|_| ()).map_err(Error::from)
        }
    }
}

fn keyspace_in_words(keyspace: &Keyspace) -> String {
    let copies: Vec<String> = keyspace
        .replication
        .iter()
        .map(|one| format!("{} {} in {}", one.copies, if one.copies == 1 { "copy" } else { "copies" }, one.datacenter))
        .collect();
    format!("layout {}, {} buckets, {}", keyspace.schema, keyspace.buckets, copies.join(", "))
}

fn status_in_words(name: &str, nodes: &[Node], keyspace: Option<&Keyspace>) -> String {
    let state = |node: &Node| if node.connected { "connected" } else { "not connected" };
    let node =
        |node: &Node| format!("node {}: {}, rack {}, {}\n", node.address, node.datacenter, node.rack, state(node));
    let keyspace = match keyspace {
        Some(keyspace) => format!("{}, {} starts of klad", keyspace_in_words(keyspace), keyspace.writers),
        None => "none".to_owned(),
    };
    format!("{}keyspace {name}: {keyspace}\n", nodes.iter().map(node).collect::<String>())
}

fn status_as_json(name: &str, nodes: &[Node], keyspace: Option<&Keyspace>) -> serde_json::Value {
    let node = |node: &Node| {
        serde_json::json!({
            "address": node.address,
            "datacenter": node.datacenter,
            "rack": node.rack,
            "connected": node.connected,
        })
    };
    let replication = |keyspace: &Keyspace| -> serde_json::Map<String, serde_json::Value> {
        keyspace.replication.iter().map(|one| (one.datacenter.clone(), one.copies.into())).collect()
    };
    serde_json::json!({
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
        "keyspace": keyspace.map(|keyspace| serde_json::json!({
            "name": name,
            "schema": keyspace.schema,
            "buckets": keyspace.buckets,
            "starts": keyspace.writers,
            "replication": replication(keyspace),
        })),
    })
}

fn print(text: &str) -> Result<(), Error> {
    output::stdout()
        .and_then(|mut stdout| stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
        .map_err(Error::NotPrinted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_names_data_centres_and_copies() {
        let one = |name: &str, copies| Ok(Replication { datacenter: name.to_owned(), copies });
        assert_eq!(replication("dc1:3"), one("dc1", 3));
        assert_eq!(replication("a:b:1"), one("a:b", 1));
        for wrong in ["", "dc1", "dc1:", ":3", "dc1:0", "dc1:11", "dc1:x"] {
            assert!(replication(wrong).is_err(), "{wrong}");
        }
    }
}
