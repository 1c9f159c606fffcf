//! The driver's ring against `virtio-queue`'s device side, in one process.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;

/// A wait that is this long, without a kick, is a hang.
const LONG: Duration = Duration::from_secs(300);

/// Answers each request with its own bytes, doubled.
fn device(queue: &DriverQueue, features: RingFeatures, stop: &AtomicBool) {
    let memory: GuestMemoryMmap = queue.ram.memory().clone();
    let mut ring = Queue::new(queue.size()).unwrap();
    ring.set_event_idx(features.event_idx);
    ring.try_set_desc_table_address(GuestAddress(queue.addresses().descriptors)).unwrap();
    ring.try_set_avail_ring_address(GuestAddress(queue.addresses().avail)).unwrap();
    ring.try_set_used_ring_address(GuestAddress(queue.addresses().used)).unwrap();
    ring.set_ready(true);
    let mut kicked = Instant::now();
    while !stop.load(Ordering::Acquire) {
        if queue.kick.read().is_err() {
            // A missing kick while there is work is a lost wake-up: no thread here polls the ring.
            assert!(kicked.elapsed() < LONG, "no kick, {} in flight", queue.in_flight());
            std::thread::yield_now();
            continue;
        }
        kicked = Instant::now();
        loop {
            ring.disable_notification(&memory).unwrap();
            while let Some(chain) = ring.pop_descriptor_chain(&memory) {
                let head = chain.head_index();
                let descriptors: Vec<_> = chain.collect();
                let mut bytes = vec![0; descriptors[0].len() as usize];
                memory.read_slice(&mut bytes, descriptors[0].addr()).unwrap();
                let answer = [bytes.as_slice(), &bytes].concat();
                memory.write_slice(&answer, descriptors[1].addr()).unwrap();
                ring.add_used(&memory, head, answer.len() as u32).unwrap();
                if ring.needs_notification(&memory).unwrap() {
                    queue.call.write(1).unwrap();
                }
            }
            if !ring.enable_notification(&memory).unwrap() {
                break;
            }
        }
    }
}

fn exchange(size: u16, features: RingFeatures, submitters: u32, rounds: u32) {
    let ram = Arc::new(GuestRam::new(16 << 20).unwrap());
    let queue = DriverQueue::new(Arc::clone(&ram), size, features).unwrap();
    let (stop, answered) = (AtomicBool::new(false), Arc::new(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| device(&queue, features, &stop));
        for submitter in 0..submitters {
            let (queue, answered) = (&queue, Arc::clone(&answered));
            scope.spawn(move || {
                for round in 0..rounds {
                    let text = format!("{submitter}:{round}");
                    let answered = Arc::clone(&answered);
                    let expected = text.repeat(2).into_bytes();
                    let completion: Completion = Box::new(move |response| {
                        assert_eq!(response, Some(expected));
                        answered.fetch_add(1, Ordering::AcqRel);
                    });
                    let readable: &[&[u8]] = &[text.as_bytes()];
                    queue.submit(vec![Request { readable, response_len: 64, completion }]).unwrap();
                }
            });
        }
        let deadline = Instant::now() + 2 * LONG;
        while answered.load(Ordering::Acquire) < submitters * rounds {
            assert!(Instant::now() < deadline, "{} answers are missing", queue.in_flight());
            match queue.call.read() {
                Ok(_) => queue.reap().unwrap(),
                Err(_) => std::thread::yield_now(),
            }
        }
        stop.store(true, Ordering::Release);
    });
    assert!(queue.is_idle());
}

#[test]
fn every_request_is_answered_once_with_event_idx_and_indirect_tables() {
    // More than 65536 requests, so that the free-running indices wrap, on a ring that is often full.
    exchange(4, RingFeatures { indirect: true, event_idx: true }, 2, 40_000);
}

#[test]
fn every_request_is_answered_once_without_ring_features() {
    exchange(8, RingFeatures { indirect: false, event_idx: false }, 2, 5_000);
}

#[test]
fn closing_completes_what_is_in_flight_without_a_response() {
    let ram = Arc::new(GuestRam::new(1 << 20).unwrap());
    let queue = DriverQueue::new(ram, 4, RingFeatures { indirect: true, event_idx: true }).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let submit = || {
        let answers = Arc::clone(&answers);
        let completion: Completion = Box::new(move |response| answers.lock().push(response));
        queue.submit(vec![Request { readable: &[b"x"], response_len: 1, completion }]).unwrap();
    };
    submit();
    queue.close();
    submit();
    assert_eq!(*answers.lock(), [None, None]);
}
