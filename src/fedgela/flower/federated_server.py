"""The server of a federation of sites: the local round (server.py), whose clients' visits are messages.

What would tell class distributions is not known here: figures are sums over classes, [N, 1] in place of
[N, C]. What sites opted in to share of their classes is kept beside, by site.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgela.algorithms import Update
from fedgela.config import Experiment
from fedgela.data import Federation
from fedgela.errors import UserError
from fedgela.evaluation import Record, accuracy, mean_accuracy
from fedgela.flower import sharing
from fedgela.flower.exchange import Exchange
from fedgela.flower.incoming import (
    Answer,
    Heard,
    Unsound,
    check_distance,
    check_key,
    check_scored,
    check_seeds,
    check_trained,
    hear,
)
from fedgela.flower.masks import FIXED_POINT
from fedgela.flower.outgoing import update_like
from fedgela.flower.privacy import CentralPrivacy, Releases, check_parameters
from fedgela.flower.secure import SecureAggregation
from fedgela.flower.terms import GA_OF_LOCALS, Agreed, Terms
from fedgela.flower.wire import About, Groups, encode, visit_of
from fedgela.models import State
from fedgela.rounds import Progress, Visit
from fedgela.server import Server
from fedgela.training import Plan

STILL_ASKED = "has not answered its last question yet"


class FederatedServer(Server):
    evaluates_apart = False  # sites are scored where they train

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        terms: Terms,
        exchange: Exchange,
        *,
        agreed: Agreed,
        note: Callable[[str], None],
        joined: Mapping[int, Answer],
        refused: Mapping[int, str],
        join: Callable[[Sequence[int]], Heard],
        releases: Releases,
    ) -> None:
        """`federation` has every site's number of samples, [N, 1], and the server's own test set, if any;
        `joined` are the answers of the sites that are there from the beginning, `refused` says why others may
        not take part, and `join` asks late ones in; `releases` counts noisy models, where privacy is
        differential."""
        super().__init__(experiment, federation, note=note)
        self.terms, self.exchange, self.agreed, self.join = terms, exchange, agreed, join
        # without the sites' own BatchNorm a global model has none that was ever trained
        self.has_test_set = len(federation.data.y_test) > 0 and not self.own_norm
        self.text = experiment.to_toml()
        self.update_like = update_like(self)
        self.releases = releases
        self.privacy: CentralPrivacy | None = None
        if terms.dp_noise > 0:
            self.privacy = CentralPrivacy(terms.dp_noise, terms.dp_clip, terms.dp_delta)
            check_parameters(self)
        self.secure: SecureAggregation | None = None
        if terms.secure_aggregation:
            fixed = FIXED_POINT[terms.wire]
            self.secure = SecureAggregation(fixed, terms.dp_clip if self.privacy else None, self._ask)
            model = self.update_like["model"]
            masked = {name: torch.zeros(value.shape, dtype=fixed.dtype) for name, value in model.items()}
            self.update_like = self.update_like | {"model": masked}
        # test samples [N, 1] of which `right` of the progress counts: a site may come back with others
        self.scored_on = self.federation.test_counts.clone()
        self.refused = dict(refused)
        # of the round, by the site's name; who was refused has been noted
        self.faults: dict[str, str] = {terms.sites[site]: why for site, why in refused.items()}
        self.faults_before: dict[str, str] = {}  # of the round before
        self.site_seconds: dict[str, float] = {}  # that they trained
        self.lost = ""  # why the round's updates are, where their sum could not be opened
        self.joined: dict[str, Record] = {}  # what sites said of their data, since the last round
        self.class_counts: dict[int, State] = {}  # of the sites that share them, "train" and "test" [C]
        self.by_class: dict[str, Record] = {}  # of the round, of the sites that share it
        for site, (groups, about) in joined.items():
            self._welcome(site, groups, about)
        if self.scorer.needs_union:
            self.note(f"{self.algorithm.title}: {GA_OF_LOCALS}")

    def _initial_extra(self) -> State:
        own = self.algorithm.initial_extra(
            self.net.projection.out_features, self.federation.data.classes, self.experiment.seed
        )
        return {name: value.to(self.device) for name, value in (own | self.agreed.statistics).items()}

    # -- a round -----------------------------------------------------------------------------------

    def step(self, progress: Progress) -> Record:
        self.faults_before, self.faults = self.faults, {}
        self.site_seconds, self.by_class, self.lost = {}, {}, ""
        sent, received = self.exchange.sent, self.exchange.received
        record = super().step(progress)
        self._check_finite(progress)
        # figures by class are of one class, the sum; but for those of the server's own test set
        record = {
            k: v
            for k, v in record.items()
            if k.startswith("GA") or not k.endswith(("_by_class", "_balanced"))
        }
        if self.joined:
            record["joined"], self.joined = self.joined, {}
        if self.by_class:
            record["by_class"] = self.by_class
        if self.faults:
            record["faults"] = self.faults
        if self.lost:
            record["lost"] = self.lost
            self.note(f"round {progress.round}: its updates are lost: {self.lost}")
        if self.privacy is not None:
            record["epsilon"] = self.privacy.epsilon(self.releases.count)
        record["site_seconds"] = self.site_seconds
        record["bytes_down"] = self.exchange.sent - sent
        record["bytes_up"] = self.exchange.received - received
        return record

    def _check_finite(self, progress: Progress) -> None:
        """Every update was finite; so is their mean, unless it overflows."""
        for name, value in progress.server.model.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise UserError(f"round {progress.round}: the global model is no finite number in {name}")

    def able(self) -> list[int]:
        online = self.exchange.wait_for(
            self.terms.min_sites, self.terms.wait_seconds, self.note, besides=self.refused
        )
        self._let_in(set(online) - set(super().able()))
        members = set(super().able())
        able = [site for site in online if site in members]
        if len(able) < self.terms.min_sites:
            others = dict.fromkeys(self.exchange.hanging, STILL_ASKED) | self.refused
            raise self.terms.too_few(len(able), others)
        for site, name in enumerate(self.terms.sites):
            if name in self.faults:
                continue
            if site in self.exchange.hanging:
                self._fault(site, STILL_ASKED)
            elif site in self.refused:
                self._fault(site, self.refused[site])
            elif site in members and site not in able:
                self._fault(site, "is not connected")
        return able

    def _let_in(self, late: set[int]) -> None:
        """Sites that were not there when the run began take part from now on; inputs stay normalised as the
        others' are. One that was refused is asked again: it may have been started anew."""
        if not late:
            return
        heard = self.join(sorted(late))
        self.refused = {k: why for k, why in self.refused.items() if k not in late} | heard.unsound
        for site, fault in heard.missing.items():
            self._fault(site, fault)
        for site, (groups, about) in heard.sound.items():
            self.federation.train.sizes[site] = about["samples"]
            self.federation.train_counts[site] = about["samples"]
            self.federation.test_counts[site] = about["tested"]
            self._welcome(site, groups, about)
            self.note(f"{self.terms.sites[site]}: takes part from now on")

    def _welcome(self, site: int, groups: Groups, about: About) -> None:
        """What a site says of its data goes into the record of its first round."""
        told = {"samples": about["samples"], "tested": about["tested"]}
        if shared := groups.get(sharing.GROUP, {}):
            self.class_counts[site] = shared
            told |= {f"{part}_by_class": value.tolist() for part, value in shared.items()}
        self.joined[self.terms.sites[site]] = told

    def visits(self, progress: Progress, plan: Plan, clients: Sequence[int]) -> list[Visit]:
        server = progress.server
        groups = {"model": self.travelling(server.model), "extra": server.extra}
        visits = []
        more: dict[str, object] = {"wire": self.terms.wire}
        if self.secure is not None:
            samples = {site: int(self.federation.train.sizes[site]) for site in clients}
            more["mask"] = self.secure.begin(progress, clients, samples)
            clients = self.secure.asked
        answers = self._ask("train", groups, clients, progress, **more)
        for site, (answer, about) in self._in_line(answers).items():
            if about["state_lost"]:
                self._fault(site, "had lost its personal model, and started anew")
            self.site_seconds[self.terms.sites[site]] = about["seconds"]
            self._keep_by_class(site, sharing.figures_of_visit, answer)
            self.scored_on[site] = self.federation.test_counts[site]
            visit = visit_of(answer, site, about["samples"])
            for state in (visit.update.model, visit.update.extra):
                state |= {name: value.to(self.device) for name, value in state.items()}
            visits.append(visit)
        if self.privacy is not None and not visits:
            self._aggregate(progress, [])  # a model without noise would tell that nobody answered
        return visits

    def _in_line(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """The answers without those that only the others show to be broken."""
        sites = list(answers)
        if not sites:
            return answers
        found = self.algorithm.out_of_line([answers[site][0].get("extra", {}) for site in sites])
        for place, why in found.items():
            self._fault(sites[place], why)
        return {site: answer for place, (site, answer) in enumerate(answers.items()) if place not in found}

    def _keep_by_class(self, site: int, figures: Callable[[State, Tensor], Record], answer: Groups) -> None:
        if site in self.class_counts:
            found = figures(answer.get(sharing.GROUP, {}), self.class_counts[site]["test"])
            if found:
                self.by_class.setdefault(self.terms.sites[site], {}).update(found)

    def _ask(
        self, task: str, groups: Groups, sites: Sequence[int], progress: Progress, **more: object
    ) -> dict[int, Answer]:
        """The sites' sound answers in the order of the sites; those that failed are named in the record."""
        questions = {}
        for site in sites:
            visited = int(progress.visited[site])
            about = self.terms.question(task, site, self.text, round=progress.round, visited=visited, **more)
            everything = groups | {"normalisation": self.agreed.normalisation}
            questions[site] = encode(everything, about, self.terms.wire)
        replies = self.exchange.ask(task, questions, self.terms.round_seconds, progress.round)
        model = progress.server.model
        heard = hear(replies, lambda site, groups, about: self._check(task, site, groups, about, model))
        for site, fault in (heard.unsound | heard.missing).items():
            self._fault(site, fault)
        return heard.sound

    def _check(self, task: str, site: int, groups: Groups, about: About, model: State) -> None:
        """Unsound where the answer is not one of a site that joined with what this one did."""
        if site not in self.class_counts:
            groups.pop(sharing.GROUP, None)  # it opted in after it had joined: from the next run on
        by_class = self.class_counts.get(site, {}).get("test")
        tested = int(self.federation.test_counts[site])
        if task == "key":
            check_key(groups, about)
        elif task == "unmask":
            assert self.secure is not None
            check_seeds(groups, about, self.secure.absent)
        elif task == "train":
            samples = int(self.federation.train.sizes[site])
            check_trained(groups, about, self.update_like, model, samples, tested, by_class)
        else:
            check_scored(task, groups, about, tested, by_class)

    def _aggregate(self, progress: Progress, updates: Sequence[Update]) -> None:
        before = self.travelling(progress.server.model)
        total: State | None = None
        if self.secure is not None:
            count = sum(1 if self.privacy else update.samples for update in updates)
            total = self._opened(progress, before, updates, count)
            mean = {name: before[name] + value / count for name, value in (total or {}).items()}
            updates = [] if total is None else [Update(0, count, mean)]
        if self.privacy is not None:
            self.releases.one_more(progress.round)
            if total is None:
                total = self.privacy.clipped(before, updates)
            updates = [self.privacy.noisy(before, total, len(self.terms.sites))]
        if updates:
            super()._aggregate(progress, updates)

    def _opened(
        self, progress: Progress, before: State, updates: Sequence[Update], count: int
    ) -> State | None:
        """The sum of the changes whose masked ones are here, of so many samples or sites; None where the
        round is lost."""
        assert self.secure is not None
        total = self.secure.open(progress, {update.client: update.model for update in updates})
        try:
            if total is None:
                raise Unsound("too few sites stayed to open their sum")
            total = {name: value.to(self.device) for name, value in total.items()}
            check_distance({name: value / count for name, value in total.items()}, before)
        except Unsound as error:
            self.lost = str(error)
            return None
        return total

    def _fault(self, site: int, text: str) -> None:
        """Every round's record has it; it is noted when it is new."""
        name = self.terms.sites[site]
        if text not in self.faults.get(name, "") + self.faults_before.get(name, ""):
            self.note(f"{name}: {text}")
        if text not in self.faults.get(name, ""):
            self.faults[name] = f"{self.faults[name]}; {text}" if name in self.faults else text

    # -- evaluation --------------------------------------------------------------------------------

    def _evaluate(self, progress: Progress) -> Record:
        """GA on the server's own test set, or else the sites' mean, weighted by their test samples; PA and
        the local accuracy over the sites that have trained. GA of local models is not known."""
        record: Record = {"GA": None}
        totals = self.scored_on
        if self.algorithm.GA_of == "global":
            if self.has_test_set:
                scorer = self.scorer
                right = scorer.right(scorer.by_global(progress.global_model, scorer.union), scorer.union)
                known = torch.bincount(scorer.labels, minlength=self.federation.data.classes)
                record |= accuracy("GA", right, known)
            else:
                record |= self._sites_mean(progress)
        visited = progress.visited > 0
        if (totals[visited] > 0).any():
            record |= mean_accuracy("local_accuracy", progress.right[visited], totals[visited])
            if self.algorithm.PA_of == "local":
                record |= mean_accuracy("PA", progress.right[visited], totals[visited])
            by_site = (100 * progress.right[:, 0].double() / totals[:, 0]).tolist()
            record["local_accuracy_by_site"] = {
                name: by_site[k] for k, name in enumerate(self.terms.sites) if visited[k] and totals[k] > 0
            }
        return record

    def _sites_mean(self, progress: Progress) -> Record:
        tested_here = self.federation.test_counts[:, 0] > 0
        sites = [k for k in self.exchange.online() if tested_here[k] and k not in self.refused]
        groups = {"model": self.travelling(progress.global_model)}
        right = tested = 0
        for site, (answer, _) in self._ask("score", groups, sites, progress).items():
            right += int(answer["measures"]["right"])
            tested += int(self.federation.test_counts[site])
            self._keep_by_class(site, sharing.figures_of_score, answer)
        return {"GA": 100 * right / tested if tested else None}

    def _angles(self, progress: Progress, selected: Sequence[int], classifiers: Sequence[Tensor]) -> Record:
        return {}  # they tell which classes a site has

    def finish(self, progress: Progress) -> Record:
        self._at_the_end = progress
        if not progress.best_round:
            progress.best_model, progress.best_round = progress.global_model, progress.round
        self.faults_before, self.faults = self.faults, {}
        measured = progress
        if self.own_norm:  # a site keeps its last BatchNorm only, and that goes with the last model
            measured = replace(progress, best_round=progress.round, best_model=progress.global_model)
        record = super().finish(measured)
        if record and self.faults:
            record["faults"] = self.faults
        # who never trained has no accuracy, rather than 0 %
        trained = progress.visited[:, None] > 0
        self.federation.test_counts[:] = self.scored_on.where(trained, 0)
        return record

    def _keep_norms(self, progress: Progress, clients: Sequence[int]) -> None: ...  # they stay on the sites

    def finetuned(
        self, model: State, round: int, clients: Sequence[int], norms: Mapping[int, State]
    ) -> tuple[Tensor, Tensor]:
        """A site that does not answer is left out of the mean, as one without test samples is."""
        counts = self.federation.test_counts
        right, asked = torch.zeros_like(counts), torch.zeros_like(counts)
        online = set(self.exchange.online())
        at = replace(self._at_the_end, round=round)
        sites = [site for site in clients if site in online and counts[site] > 0]
        answers = self._ask("finetune", {"model": self.travelling(model)}, sites, at)
        for site, (answer, _) in answers.items():
            right[site], asked[site] = answer["measures"]["right"], counts[site]
        return right, asked
