//! Lines for the system's log: to journald if it runs, else to the syslog daemon. Both take datagrams. Without
//! either, a line is lost; no server waits for its log.

use std::os::unix::net::UnixDatagram;

/// Socket of journald's own protocol.
const JOURNALD: &str = "/run/systemd/journal/socket";
/// Socket of any syslog daemon.
const SYSLOG: &str = "/dev/log";
/// Facility of daemons.
const DAEMON: u8 = 3;

/// Severity of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Error = 3,
    Warning = 4,
}

/// Sends one line; a failure is ignored, because there is nowhere to report it.
pub(crate) fn send(level: Level, line: &str) {
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    let _ = socket.set_nonblocking(true);
    let line = line.trim_end().replace('\n', " ");
    if socket
        .send_to(for_journald(level, &line).as_bytes(), JOURNALD)
        .is_err()
    {
        let _ = socket.send_to(for_syslog(level, &line).as_bytes(), SYSLOG);
    }
}

/// systemd's native protocol: one field per line.
fn for_journald(level: Level, line: &str) -> String {
    format!(
        "PRIORITY={}\nSYSLOG_FACILITY={DAEMON}\nSYSLOG_IDENTIFIER=steadfast\nMESSAGE={line}\n",
        level as u8
    )
}

/// RFC 3164 without a time, which the daemon then adds.
fn for_syslog(level: Level, line: &str) -> String {
    let priority = DAEMON * 8 + level as u8;
    format!("<{priority}>steadfast[{}]: {line}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_form_of_either_daemon() {
        let journald = for_journald(Level::Warning, "a volume");
        assert!(journald.starts_with("PRIORITY=4\n") && journald.ends_with("\nMESSAGE=a volume\n"));
        let syslog = for_syslog(Level::Error, "a volume");
        assert!(
            syslog.starts_with("<27>steadfast[") && syslog.ends_with("]: a volume"),
            "{syslog}"
        );
    }
}
