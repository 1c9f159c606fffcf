//! The choices of the operator, and the effects of keys on them.

use super::moment::{Column, Id, Moment, Row};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::BTreeSet;

/// The choices of the operator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    /// The row that is chosen.
    pub(super) chosen: Option<Id>,
    pub(super) sorted: Column,
    /// The order is reversed.
    pub(super) reversed: bool,
    /// VMs whose contexts are shown.
    pub(super) unfolded: BTreeSet<String>,
    pub(super) question: Option<Question>,
    /// A message that is shown until the next key.
    pub(super) notice: String,
}

/// The question whether a context is to be killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) vm: String,
    pub(super) context: u32,
    /// The guest's program, which distinguishes this context from a later one with the same number.
    pub(super) program: String,
}

/// The consequence of a key beyond a changed view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The key only changes the view.
    None,
    /// The operator wants to leave.
    Quit,
    /// The operator wants the effect that Ctrl-C has in other programs.
    Interrupt,
    /// The operator wants the effect that Ctrl-Z has in other programs.
    Suspend,
    /// The operator wants a context killed, and has confirmed it.
    Kill(Question),
}

impl Default for View {
    fn default() -> Self {
        Self {
            chosen: None,
            sorted: Column::Name,
            reversed: false,
            unfolded: BTreeSet::new(),
            question: None,
            notice: String::new(),
        }
    }
}

impl View {
    /// Returns the rows as they are shown.
    pub(super) fn rows(&self, moment: &Moment) -> Vec<Row> {
        moment.rows(self.sorted, self.reversed, |vm| self.unfolded.contains(vm))
    }

    /// Lets the choices fit the present VMs. A question to the operator about a context that has ended is withdrawn.
    pub(super) fn settle(&mut self, moment: &Moment) {
        let rows = self.rows(moment);
        let there = |id: &Id| rows.iter().any(|row| row.id == *id);
        self.chosen = match self.chosen.take() {
            Some(id) if there(&id) => Some(id),
            Some(Id::Context(vm, _)) if there(&Id::Vm(vm.clone())) => Some(Id::Vm(vm)),
            _ => rows.first().map(|row| row.id.clone()),
        };
        if let Some(asked) = &self.question {
            let vm = moment.status.vms.iter().find(|vm| vm.name == asked.vm);
            let mut contexts = vm.into_iter().flat_map(|vm| &vm.contexts);
            if !contexts.any(|here| here.context == asked.context && here.name == asked.program) {
                self.notice =
                    format!("{}/{} {} has ended by itself.", asked.vm, asked.context, asked.program);
                self.question = None;
            }
        }
    }

    /// Carries out the effect of a key. `columns` are the columns that fit.
    pub(super) fn press(&mut self, key: KeyEvent, moment: &Moment, columns: &[Column]) -> Wish {
        self.notice.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Interrupt,
                KeyCode::Char('z') => Wish::Suspend,
                _ => Wish::None,
            };
        }
        if let Some(question) = self.question.take() {
            match key.code {
                KeyCode::Char('y' | 'Y') => return Wish::Kill(question),
                KeyCode::Char('n' | 'N') | KeyCode::Esc => {}
                _ => self.question = Some(question),
            }
            return Wish::None;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Up => self.choose(moment, |at, _| at.saturating_sub(1)),
            KeyCode::Down => self.choose(moment, |at, _| at + 1),
            KeyCode::PageUp => self.choose(moment, |at, _| at.saturating_sub(10)),
            KeyCode::PageDown => self.choose(moment, |at, _| at + 10),
            KeyCode::Home => self.choose(moment, |_, _| 0),
            KeyCode::End => self.choose(moment, |_, last| last),
            KeyCode::Left => self.sort(columns, columns.len().saturating_sub(1)),
            KeyCode::Right => self.sort(columns, 1),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Enter | KeyCode::Char(' ') => self.fold(),
            KeyCode::Char('a') => self.fold_all(moment),
            KeyCode::Char('k') => self.ask(moment),
            _ => {}
        }
        self.settle(moment);
        Wish::None
    }

    fn choose(&mut self, moment: &Moment, to: impl Fn(usize, usize) -> usize) {
        let rows = self.rows(moment);
        let last = rows.len().saturating_sub(1);
        let at = rows.iter().position(|row| Some(&row.id) == self.chosen.as_ref()).unwrap_or(0);
        self.chosen = rows.get(to(at, last).min(last)).map(|row| row.id.clone());
    }

    fn sort(&mut self, columns: &[Column], step: usize) {
        let at = columns.iter().position(|column| *column == self.sorted).unwrap_or(0);
        if let Some(column) = columns.get((at + step) % columns.len().max(1)) {
            (self.sorted, self.reversed) = (*column, false);
        }
    }

    /// Shows the contexts of the VM that is chosen, or hides them.
    fn fold(&mut self) {
        let Some(chosen) = &self.chosen else { return };
        let vm = chosen.vm().to_owned();
        if !self.unfolded.remove(&vm) {
            self.unfolded.insert(vm);
        }
    }

    /// Shows the contexts of all VMs, or hides them if all are shown.
    fn fold_all(&mut self, moment: &Moment) {
        let all: BTreeSet<_> = moment.status.vms.iter().map(|vm| vm.name.clone()).collect();
        self.unfolded = if all.is_subset(&self.unfolded) { BTreeSet::new() } else { all };
    }

    fn ask(&mut self, moment: &Moment) {
        let rows = self.rows(moment);
        match rows.into_iter().find(|row| Some(&row.id) == self.chosen.as_ref()) {
            Some(Row { id: Id::Context(vm, context), name, .. }) => {
                self.question = Some(Question { vm, context, program: name });
            }
            Some(row) if row.vm.is_some_and(|vm| vm.is_unfolded) => {
                self.notice = "Choose one of its contexts: k kills a context, not a VM.".into();
            }
            _ => self.notice = "Space shows the contexts of a VM; k kills the one that is chosen.".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::moment::tests::status;
    use super::*;

    fn moment() -> Moment {
        Moment::new(status(), None)
    }

    fn view() -> View {
        let mut view = View::default();
        view.settle(&moment());
        view
    }

    fn press(view: &mut View, keys: &[KeyCode]) -> Wish {
        let press = |wish, code: &KeyCode| match wish {
            Wish::None => view.press(KeyEvent::from(*code), &moment(), &Column::ALL),
            wish => wish,
        };
        keys.iter().fold(Wish::None, press)
    }

    #[test]
    fn the_choice_stays_inside_and_with_what_was_chosen() {
        let mut view = view();
        assert_eq!(view.chosen, Some(Id::Vm("nightly".into())));
        press(&mut view, &[KeyCode::Up]);
        assert_eq!(view.chosen, Some(Id::Vm("nightly".into())));
        press(&mut view, &[KeyCode::End, KeyCode::Down]);
        assert_eq!(view.chosen, Some(Id::Vm("web".into())));
        press(&mut view, &[KeyCode::Char('r')]);
        assert_eq!(view.chosen, Some(Id::Vm("web".into())), "though it is the first now");
    }

    #[test]
    fn each_column_sorts_and_no_column_without_room() {
        let mut view = view();
        let mut seen = Vec::new();
        for _ in Column::ALL {
            seen.push(view.sorted);
            press(&mut view, &[KeyCode::Right]);
        }
        assert_eq!(seen, Column::ALL);
        let narrow = [Column::Name, Column::Share];
        view.press(KeyEvent::from(KeyCode::Left), &moment(), &narrow);
        assert_eq!(view.sorted, Column::Share);
    }

    #[test]
    fn only_a_context_is_killed_and_only_after_a_yes() {
        let mut view = view();
        press(&mut view, &[KeyCode::Char('k')]);
        assert!(view.question.is_none() && view.notice.contains("Space"), "{view:?}");
        press(&mut view, &[KeyCode::End, KeyCode::Char(' '), KeyCode::Char('k')]);
        assert!(view.question.is_none() && view.notice.contains("not a VM"), "{view:?}");
        press(&mut view, &[KeyCode::Down, KeyCode::Char('k')]);
        let asked = Question { vm: "web".into(), context: 3, program: "llama-server".into() };
        assert_eq!(view.question.as_ref(), Some(&asked));
        press(&mut view, &[KeyCode::Char('q'), KeyCode::Enter, KeyCode::Down]);
        assert_eq!(view.question.as_ref(), Some(&asked), "neither yes nor no");
        press(&mut view, &[KeyCode::Char('n')]);
        assert_eq!(view.question, None);
        assert_eq!(press(&mut view, &[KeyCode::Char('k'), KeyCode::Char('y')]), Wish::Kill(asked));
    }

    #[test]
    fn a_context_that_ends_is_not_asked_about_nor_is_its_successor() {
        let mut view = view();
        press(&mut view, &[KeyCode::End, KeyCode::Char(' '), KeyCode::Down, KeyCode::Char('k')]);
        let mut later = status();
        later.vms[2].contexts[0].name = "another".into();
        view.settle(&Moment::new(later.clone(), None));
        assert!(
            view.question.is_none() && view.notice.starts_with("web/3 llama-server has ended"),
            "{view:?}"
        );
        later.vms[2].contexts.remove(0);
        view.settle(&Moment::new(later.clone(), None));
        assert_eq!(view.chosen, Some(Id::Vm("web".into())));
        later.vms.clear();
        view.settle(&Moment::new(later, None));
        assert_eq!(view.chosen, None);
    }

    #[test]
    fn all_vms_unfold_and_fold() {
        let mut view = view();
        press(&mut view, &[KeyCode::Char('a')]);
        assert_eq!(view.rows(&moment()).len(), 5);
        press(&mut view, &[KeyCode::Char('a')]);
        assert_eq!(view.rows(&moment()).len(), 3);
    }

    #[test]
    fn keys_of_terminals_work_while_a_question_is_open() {
        let mut view = view();
        press(&mut view, &[KeyCode::Char('a'), KeyCode::End, KeyCode::Char('k')]);
        assert!(view.question.is_some());
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(interrupt, &moment(), &Column::ALL), Wish::Interrupt);
    }
}
