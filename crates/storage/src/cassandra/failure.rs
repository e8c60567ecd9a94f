//! Converts errors of the driver to errors of storage.
//!
//! If too few copies answer a request without a condition, its error has the number of answers. If the request is a
//! write, it may be stored all the same. The outcome of a conditional write that was sent and not answered is unknown
//! until the module `conditional` finds it out.

use scylla::errors::{DbError, ExecutionError, RequestAttemptError};

use crate::cassandra::NAME;
use crate::cassandra::level::Level;
use crate::operation::Error;

/// The error text for an atomic batch that the cluster rejects as too large.
const LARGE_BATCHES: &str = "atomic batches above batch_size_fail_threshold of cassandra.yaml: send smaller batches, or \
                             leave out atomic";

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Too few copies are reachable. A part of the request may already have been executed.
    Unavailable { answered: u32, asked: u32 },
    /// The request was executed, but too few copies answered in time.
    TooFewAnswers { answered: u32, asked: u32 },
    /// The request was sent, but no answer came.
    NoAnswer { asked: u32 },
    /// The request may have been executed.
    Unknown(String),
    /// The cluster rejected the request, which was not executed.
    Rejected(String),
    /// The batch is larger than the cluster takes. It was not executed.
    BatchTooLarge,
}

impl Failure {
    /// Converts the driver's error about a request at `level`.
    pub(super) fn of(error: &ExecutionError, level: Level) -> Failure {
        let asked = u32::from(level.acks);
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        match error {
            // The driver has found no connection to any node.
            ExecutionError::ConnectionPoolError(_) | ExecutionError::EmptyPlan => {
                Failure::Unavailable { answered: 0, asked }
            }
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, why)) => match error {
                DbError::Unavailable { required, alive, .. } => {
                    Failure::Unavailable { answered: count(*alive), asked: count(*required) }
                }
                // A read also times out if enough copies answered, but none of them with the row itself.
                DbError::ReadTimeout { received, required, .. } => {
                    Failure::TooFewAnswers { answered: count(*received), asked: count(*required) }
                }
                DbError::WriteTimeout { received, required, .. } if received < required => {
                    Failure::TooFewAnswers { answered: count(*received), asked: count(*required) }
                }
                DbError::Invalid if why.contains("atch too large") => Failure::BatchTooLarge,
                DbError::SyntaxError
                | DbError::Invalid
                | DbError::AlreadyExists { .. }
                | DbError::Unauthorized
                | DbError::ConfigError
                | DbError::IsBootstrapping => Failure::Rejected(format!("{error}: {why}")),
                _ => Failure::Unknown(format!("{error}: {why}")),
            },
            ExecutionError::RequestTimeout(_)
            | ExecutionError::LastAttemptError(RequestAttemptError::BrokenConnectionError(_)) => {
                Failure::NoAnswer { asked }
            }
            ExecutionError::LastAttemptError(
                RequestAttemptError::SerializationError(_)
                | RequestAttemptError::CqlRequestSerialization(_)
                | RequestAttemptError::UnableToAllocStreamId,
            )
            | ExecutionError::BadQuery(_)
            | ExecutionError::PrepareError(_) => Failure::Rejected(error.to_string()),
            other => Failure::Unknown(other.to_string()),
        }
    }

    /// The error of a read.
    pub(super) fn into_read_error(self) -> Error {
        match self {
            Failure::Unknown(why) => Error::ReadFailed { why },
            other => other.into_write_error(),
        }
    }

    /// The error of a plain write, or of a conditional write whose failure [is final](Failure::is_final).
    pub(super) fn into_write_error(self) -> Error {
        match self {
            Failure::Unavailable { answered, asked } | Failure::TooFewAnswers { answered, asked } => {
                Error::NotEnoughReplicas { answered, asked }
            }
            Failure::NoAnswer { asked } => Error::NotEnoughReplicas { answered: 0, asked },
            Failure::Unknown(why) => Error::Undetermined { why },
            Failure::Rejected(why) => Error::RejectedByCluster { why },
            Failure::BatchTooLarge => Error::NotSupported { engine: NAME, what: LARGE_BATCHES },
        }
    }

    /// Whether the node that received the request no longer works on it. The copies may still execute the request.
    pub(super) fn coordinator_has_ended(&self) -> bool {
        matches!(self, Failure::TooFewAnswers { .. })
    }

    /// Whether a serial read would tell nothing new, because the request had no effect or too few copies are reachable.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Failure::Unavailable { .. } | Failure::Rejected(_) | Failure::BatchTooLarge)
    }
}
