//! Forwarding what ranks print, line by line.
//!
//! Lines are bytes: what is not UTF-8 goes through unchanged. A line is written in one piece, so lines of two ranks never mix; a last line without an end gets one. Only a line of more than [`MAX_LINE`] bytes is cut.

use crate::Console;
use gaggle_core::Rank;
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    sync::{Mutex, PoisonError},
};

/// Longer lines are forwarded in pieces of this many bytes, so that memory stays bounded.
pub(crate) const MAX_LINE: u64 = 1 << 20;
/// How many lines of stderr the report of a failure repeats.
const TAIL_LINES: usize = 20;
/// How much of one of them it repeats, in bytes.
const TAIL_LINE: usize = 1000;

/// Which of the launcher's streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum To {
    Out,
    Err,
}

/// The end of a stream, kept for the report.
#[derive(Default)]
pub(crate) struct Tail(Mutex<VecDeque<Vec<u8>>>);

impl Tail {
    fn push(&self, line: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line[..line.len().min(TAIL_LINE)].to_vec());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).trim_end().to_owned();
        lines.iter().map(text).collect()
    }
}

/// Reads `from` to its end and writes each line, with `rank`'s prefix if there is one.
pub(crate) fn forward(
    from: impl Read,
    rank: Option<Rank>,
    console: &Console,
    to: To,
    tail: Option<&Tail>,
) {
    let (sink, colour) = match to {
        To::Out => (&console.out, console.colour_out),
        To::Err => (&console.err, console.colour_err),
    };
    let prefix = rank.map(|rank| prefix(rank, colour)).unwrap_or_default();
    let mut from = BufReader::with_capacity(1 << 16, from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        // A broken pipe ends a stream like its closing does: the rank is gone.
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        if read.is_err() || line.len() == prefix.len() {
            return;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if let Some(tail) = tail {
            tail.push(&line[prefix.len()..]);
        }
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        // Where the launcher's stream is closed, ranks go on: reading goes on so that they do not block.
        let _ = sink.write_all(&line);
        let _ = sink.flush();
    }
}

fn prefix(rank: Rank, colour: bool) -> String {
    const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];
    if colour {
        let colour = COLOURS[rank.idx() % COLOURS.len()];
        format!("\x1b[{colour}m[{}]\x1b[0m ", rank.0)
    } else {
        format!("[{}] ", rank.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn check(input: &[u8], expected: &[u8]) {
        let (out, tail) = (Shared::default(), Tail::default());
        let console = Console::new(out.clone(), std::io::sink());
        forward(input, Some(Rank(1)), &console, To::Out, Some(&tail));
        assert_eq!(*out.0.lock().unwrap(), expected);
    }

    #[test]
    fn every_line_gets_a_prefix_and_an_end() {
        check(b"", b"");
        check(b"\n", b"[1] \n");
        check(b"a\nb\n", b"[1] a\n[1] b\n");
        check(b"a\nhalf", b"[1] a\n[1] half\n");
        check(b"\xff\xfe\0\n", b"[1] \xff\xfe\0\n");
        check(b"10%\r20%\r\n", b"[1] 10%\r20%\r\n");
    }

    #[test]
    fn an_endless_line_is_cut_at_the_bound() {
        let input = vec![b'x'; MAX_LINE as usize + 3];
        let mut expected = b"[1] ".to_vec();
        expected.extend_from_slice(&input[..MAX_LINE as usize]);
        expected.extend_from_slice(b"\n[1] xxx\n");
        check(&input, &expected);
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let tail = Tail::default();
        let input: String = (0..50).map(|i| format!("line {i}\n")).collect();
        let console = Console::new(std::io::sink(), std::io::sink());
        forward(input.as_bytes(), None, &console, To::Err, Some(&tail));
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines[0], "line 30");
        assert_eq!(lines[TAIL_LINES - 1], "line 49");
    }
}
