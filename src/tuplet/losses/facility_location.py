"""Facility location loss: the clustering by the true classes should score better than any other."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.batchwise import class_numbers, refuse_gallery, refuse_same
from tuplet.rows import View

# Scores and entropies that differ by less than this part count as equal; of equals the first is taken. The order of a
# sum would decide otherwise, as between the two members of a cluster.
_EQUAL = 1e-9


class FacilityLocationLoss(RowLoss):
    """Facility location loss: [max_S (F(X, S) + γ (1 − NMI(S))) − F̃]₊, a structured hinge (Song et al. 2017).

    S is a set of medoids, as many as the batch has classes. F(X, S) = −Σ_i min_{j∈S} d_ij is the score of the
    clustering that puts each example to its nearest medoid, NMI that of this clustering with the classes, I/√(H·H), and
    F̃ the score of the classes with the best medoid of each. All are plain sums over the batch, so γ should grow with
    it.

    The maximum is searched: first greedily, from no medoid on adding the one that makes F + γ (1 − NMI) largest; then
    by up to `rounds` rounds in which each cluster in turn takes the member as its medoid that makes its own sum of
    distances and γ (1 − NMI) best. The gradient flows through the distances alone.

    Args:
        gamma: γ, the weight of 1 − NMI. The authors' value is not known.
        decay: the factor of γ after each epoch (`end_epoch()`, which `tuplet.train` calls). The authors take 0.94, as
            it seems after each epoch, which is not confirmed.
        rounds: the number of rounds of refinement; 0 for the greedy search alone.

    Inputs: vectors of any length, usually unit; batches with several examples of each class. The authors take batches
    of 128 with a quarter (SOP: three quarters) as many classes.

    Time is O(C·N²) for N examples of C classes, in float64, and memory O(N²). A loop over the classes waits for a GPU,
    and cannot be compiled with `fullgraph=True`. It takes no gallery and no `same=`. Each of several processes searches
    the batch of all.

    Related: `SpectralClusteringLoss` judges the clustering of a batch in closed form.

    >>> loss = FacilityLocationLoss(gamma=1.0)
    >>> loss(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), torch.tensor([0, 0, 1, 1])).item()
    0.0
    >>> loss(torch.tensor([[0.0], [0.1], [0.2], [0.3]]), torch.tensor([0, 1, 0, 1])).item()
    1.2...

    Oh Song, Jegelka, Rathod, Murphy: Deep Metric Learning via Facility Location. CVPR 2017.
    """

    name, geometry = "facility_location", "euclidean"
    takes_gallery = False
    epochs: Tensor

    def __init__(self, gamma: float = 1.0, decay: float = 1.0, rounds: int = 5) -> None:
        super().__init__()
        self.gamma, self.decay, self.rounds = gamma, decay, rounds
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))

    def end_epoch(self) -> None:
        """Multiply γ by `decay` from now on."""
        self.epochs += 1

    def value(self, view: View) -> Tensor:
        """Search the best medoids without gradient, then sum the distances to them and to the classes' medoids."""
        refuse_gallery(self, view)
        refuse_same(self, view)
        # A search of hundreds of small steps, each of which waits for the last, is faster on a CPU.
        gamma = self.gamma * self.decay ** self.epochs.cpu().double()
        with torch.no_grad():
            table = view.each(lambda d, positive, negative: d).cpu().double()
            search = _Search((table + table.T) / 2, class_numbers(view.labels.cpu()), gamma)
            nearest, nmi = search.found(self.rounds)
            medoids = search.class_medoids()
        total, _ = view.total(self._distances, own=(medoids.to(view.labels.device), nearest.to(view.labels.device)))
        return (total + (gamma * (1 - nmi)).to(total)).relu()

    def _distances(
        self, d: Tensor, positive: Tensor, negative: Tensor, medoid: Tensor, nearest: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the distance to the medoid of the class less that to the medoid of the cluster."""
        total = (d.gather(1, medoid[:, None]) - d.gather(1, nearest[:, None]))[:, 0]
        return total, torch.ones_like(total)


class _Search:
    """Search for the medoids of a batch, given its distances (N, N) and the classes of its rows, 0 … C − 1."""

    def __init__(self, table: Tensor, classes: Tensor, gamma: Tensor) -> None:
        self.table, self.classes, self.gamma = table, classes, gamma
        self.sizes = torch.bincount(classes).double()

    def class_medoids(self) -> Tensor:
        """Return for each row the medoid of its class: the member with the least sum of distances to the others."""
        same = self.classes[:, None] == self.classes
        cost = torch.where(same, self.table, 0).sum(0)
        best = torch.full_like(self.sizes, torch.inf).scatter_reduce(0, self.classes, cost, "amin")
        good = cost <= best[self.classes] * (1 + _EQUAL)
        n = len(cost)
        first = torch.where(good, torch.arange(n, device=cost.device), n - 1)
        medoid = torch.full_like(self.sizes, n, dtype=torch.int64).scatter_reduce(0, self.classes, first, "amin")
        return medoid[self.classes]

    def found(self, rounds: int) -> tuple[Tensor, Tensor]:
        """Return for each row the medoid that it is put to, and the NMI of that clustering."""
        medoids = self._refined(self._greedy(), rounds)
        cluster = self.table[:, medoids].argmin(1)
        unmoved = torch.zeros_like(cluster, dtype=torch.bool)[:, None]
        return medoids[cluster], self._nmi(cluster, unmoved)[0]

    def _greedy(self) -> Tensor:
        """Add the medoid that makes the score largest, until there are as many as classes."""
        n = len(self.table)
        reach = self.table.new_full((n,), torch.inf)
        cluster, chosen = torch.zeros_like(self.classes), []
        taken = torch.zeros_like(self.classes, dtype=torch.bool)
        for k in range(len(self.sizes)):
            moved = self.table < reach[:, None]
            score = self.gamma * (1 - self._nmi(cluster, moved)) - torch.minimum(self.table, reach[:, None]).sum(0)
            best = _first_of_largest(torch.where(taken, -torch.inf, score))
            cluster = torch.where(moved[:, best], k, cluster)
            reach = torch.minimum(reach, self.table[:, best])
            taken[best] = True
            chosen.append(best)
        return torch.stack(chosen)

    def _refined(self, medoids: Tensor, rounds: int) -> Tensor:
        """Let each cluster in turn take its best member as medoid; then put all rows to their nearest one."""
        for _ in range(rounds if len(medoids) > 1 else 0):
            before, cluster = medoids, self.table[:, medoids].argmin(1)
            for k in range(len(medoids)):
                (members,) = (cluster == k).nonzero(as_tuple=True)
                # Copies of one vector may leave a medoid alone.
                if len(members) > 1:
                    others = self.table[:, medoids]
                    others[:, k] = torch.inf
                    reach, nearest = others.min(1)
                    moved = self.table[:, members] < reach[:, None]
                    inside = self.table[members][:, members].sum(0)
                    score = self.gamma * (1 - self._nmi(nearest, moved)) - inside
                    medoids = medoids.clone()
                    medoids[k] = members[_first_of_largest(score)]
            if torch.equal(before, medoids):
                break
        return medoids

    def _nmi(self, cluster: Tensor, moved: Tensor) -> Tensor:
        """Return NMI with the classes for each column j of `moved`, whose rows leave their cluster for a new one."""
        n, classes, leaving = len(moved), self.classes, moved.double()
        staying = 1 - leaving
        cells = (cluster * len(self.sizes) + classes).unique(return_inverse=True)[1]
        joint = _grouped(staying, cells, n), _grouped(leaving, classes, len(self.sizes))
        clusters = _grouped(staying, cluster, n), leaving.sum(0, keepdim=True)
        # n·H and n·I by x log x of counts.
        whole = _x_log_x(self.sizes.new_tensor([[float(n)]]))[0]
        of_classes = whole - _x_log_x(self.sizes[:, None])
        of_clusters = whole - sum(map(_x_log_x, clusters))
        shared = of_clusters + of_classes - whole + sum(map(_x_log_x, joint))
        nothing = whole * _EQUAL
        some = (of_classes > nothing) & (of_clusters > nothing)
        # One class and one cluster agree; one alone says nothing of the other.
        alone = ((of_classes <= nothing) & (of_clusters <= nothing)).double()
        return torch.where(some, shared / torch.where(some, of_classes * of_clusters, 1).sqrt(), alone)


def _grouped(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Sum the rows of each group."""
    return x.new_zeros(groups, x.shape[1]).index_add(0, group, x)


def _x_log_x(counts: Tensor) -> Tensor:
    """Return Σ x log x of each column."""
    return torch.special.xlogy(counts, counts).sum(0)


def _first_of_largest(score: Tensor) -> Tensor:
    """Return the index of the first score that is the largest, or equal to it but for rounding."""
    largest = score.max()
    return (score >= largest - _EQUAL * (1 + largest.abs())).double().argmax()
