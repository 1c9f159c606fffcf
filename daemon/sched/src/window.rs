//! The GPU time that a tenant had lately. This file knows no tenants.

use super::Nanos;
use std::collections::VecDeque;

/// GPU time used within the last `length`, in steps of a 200th of `length`.
#[derive(Debug)]
pub(super) struct Window {
    length: Nanos,
    /// The start of each step, and the time used in it.
    steps: VecDeque<(Nanos, Nanos)>,
    sum: Nanos,
}

impl Window {
    pub(super) fn new(length: Nanos) -> Self {
        Self { length: length.max(STEPS), steps: VecDeque::new(), sum: 0 }
    }

    pub(super) fn add(&mut self, used: Nanos, now: Nanos) {
        self.expire(now);
        self.sum = self.sum.saturating_add(used);
        match self.steps.back_mut() {
            Some((begin, sum)) if now.saturating_sub(*begin) < self.length / STEPS => {
                *sum = sum.saturating_add(used);
            }
            _ => self.steps.push_back((now, used)),
        }
    }

    /// Refunds an amount that was charged too much, from the latest charge backwards.
    pub(super) fn refund(&mut self, mut refund: Nanos) {
        self.sum = self.sum.saturating_sub(refund);
        for (_, used) in self.steps.iter_mut().rev() {
            let part = refund.min(*used);
            *used -= part;
            refund -= part;
            if refund == 0 {
                break;
            }
        }
    }

    /// Returns the GPU time that was used within the last `length`.
    pub(super) fn used(&mut self, now: Nanos) -> Nanos {
        self.expire(now);
        self.sum
    }

    /// Returns the time at which at most `limit` will have been used within the last `length`, if no time is added.
    pub(super) fn falls_to(&mut self, limit: Nanos, now: Nanos) -> Nanos {
        let mut sum = self.used(now);
        let mut at = now;
        for (begin, used) in &self.steps {
            if sum <= limit {
                break;
            }
            sum = sum.saturating_sub(*used);
            at = begin.saturating_add(self.length);
        }
        at.max(now)
    }

    fn expire(&mut self, now: Nanos) {
        while let Some((begin, used)) = self.steps.front().copied()
            && now.saturating_sub(begin) >= self.length
        {
            self.sum = self.sum.saturating_sub(used);
            self.steps.pop_front();
        }
        if self.steps.is_empty() {
            self.sum = 0;
        }
    }
}

const STEPS: u64 = 200;
