//! Credentials that a program of the host issues for the kubelet, as on EKS: the `exec` entry of a kubeconfig. The
//! agent runs the same program as a unit of the host.
//!
//! [`command`] turns the entry into a command, [`answer`] parses the program's output, and [`renewal`] decides when the
//! program must run again. None of their messages contains a credential.

pub mod answer;
pub mod command;
pub mod renewal;
