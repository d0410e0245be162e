//! `skopeo experimental-image-proxy`, which bootc itself uses for registries.
//!
//! Requests and replies are JSON packets on a socket pair; bulk data comes through pipes whose ends arrive with the replies.

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, send, socketpair};
use serde::Deserialize;
use serde_json::{Value, json};

/// Longest packet that skopeo sends.
const PACKET: usize = 32 * 1024;
/// Files with the host's registry credentials; the first that exists is used.
const AUTH: [&str; 3] = [
    "/run/ostree/auth.json",
    "/etc/ostree/auth.json",
    "/usr/lib/ostree/auth.json",
];

#[derive(Debug)]
pub(crate) struct Proxy {
    socket: OwnedFd,
    child: Child,
}

#[derive(Debug, Deserialize)]
struct Reply {
    success: bool,
    #[serde(default)]
    value: Value,
    #[serde(default)]
    pipeid: u32,
    #[serde(default)]
    error: String,
}

impl Proxy {
    pub(crate) fn start() -> Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .context("skopeo spawn error")?;
        let mut command = Command::new("skopeo");
        command.arg("experimental-image-proxy");
        match AUTH.iter().find(|path| std::path::Path::new(path).exists()) {
            Some(path) => command.arg("--authfile").arg(path),
            None => command.arg("--no-creds"),
        };
        let child = command
            .stdin(Stdio::from(theirs))
            .spawn()
            .context("skopeo spawn error")?;
        let proxy = Self { socket, child };
        proxy.call("Initialize", &json!([]))?;
        Ok(proxy)
    }

    /// Opens an image; returns its number for later calls.
    pub(crate) fn open(&self, image: &str) -> Result<u64> {
        let (value, _) = self.call("OpenImage", &json!([image]))?;
        value.as_u64().context("OpenImage without a number")
    }

    pub(crate) fn manifest(&self, image: u64) -> Result<(String, String)> {
        let (value, pipe) = self.call("GetManifest", &json!([image]))?;
        let digest = value.as_str().context("GetManifest without a digest")?.to_owned();
        Ok((digest, self.text(pipe)?))
    }

    pub(crate) fn config(&self, image: u64) -> Result<String> {
        let (_, pipe) = self.call("GetFullConfig", &json!([image]))?;
        self.text(pipe)
    }

    pub(crate) fn blob(&self, image: u64, digest: &str, size: u64) -> Result<File> {
        let (_, data) = self.call("GetBlob", &json!([image, digest, size]))?;
        data.context("GetBlob without a pipe")
    }

    /// Finishes a transfer after its last byte. skopeo reports a failed transfer only in this reply.
    pub(crate) fn finish(&self, data: File) -> Result<()> {
        drop(data);
        self.reply("FinishPipe").map(drop)
    }

    fn text(&self, data: Option<File>) -> Result<String> {
        let mut data = data.context("a reply without a pipe")?;
        let mut text = String::new();
        data.read_to_string(&mut text).context("reading from skopeo")?;
        self.finish(data)?;
        Ok(text)
    }

    /// Calls a method. skopeo keeps its end of the reply's pipe open until a request to finish the pipe, and answers
    /// that request only when all data is written. So this also sends that request; [`Self::finish`] reads the answer.
    fn call(&self, method: &str, args: &Value) -> Result<(Value, Option<File>)> {
        self.request(method, args)?;
        let (reply, fd) = self.reply(method)?;
        let data = fd.map(own).transpose()?;
        if data.is_some() {
            self.request("FinishPipe", &json!([reply.pipeid]))?;
        }
        Ok((reply.value, data))
    }

    fn request(&self, method: &str, args: &Value) -> Result<()> {
        let request = serde_json::to_vec(&json!({"method": method, "args": args}))?;
        send(self.socket.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL)
            .map_err(|_| anyhow!("skopeo proxy unexpectedly exited during request method {method}"))?;
        Ok(())
    }

    fn reply(&self, method: &str) -> Result<(Reply, Option<RawFd>)> {
        let (bytes, fd) = self.receive()?;
        if bytes.is_empty() {
            bail!("skopeo proxy unexpectedly exited during request method {method}");
        }
        let reply: Reply = serde_json::from_slice(&bytes).context("Deserializing reply")?;
        if !reply.success {
            bail!("failed to invoke method {method}: {}", reply.error);
        }
        Ok((reply, fd))
    }

    fn receive(&self) -> Result<(Vec<u8>, Option<RawFd>)> {
        let mut buffer = vec![0u8; PACKET];
        let mut control = nix::cmsg_space!(RawFd);
        let (length, fd) = {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = recvmsg::<()>(self.socket.as_raw_fd(), &mut slices, Some(&mut control), flags)
                .context("reading from skopeo")?;
            let fd = message.cmsgs()?.find_map(|c| match c {
                ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                _ => None,
            });
            (message.bytes, fd)
        };
        buffer.truncate(length);
        Ok((buffer, fd))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Errors do not matter: everything that was fetched has been checked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes ownership of a received descriptor, by reopening it: this needs no `unsafe`.
fn own(fd: RawFd) -> Result<File> {
    let file = File::open(format!("/proc/self/fd/{fd}")).context("taking a pipe from skopeo");
    nix::unistd::close(fd).context("closing skopeo's pipe")?;
    file
}
