import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.vision.answers import DIFFERENT, SINGULARS, equal, is_plural

PAIRS = """
house houses, movie movies, tomato tomatoes, potato potatoes, wolf wolves, knife knives, leaf leaves, shelf shelves,
bookshelf bookshelves, bus buses, glove gloves, dish dishes, bench benches, box boxes, fox foxes, berry berries, toy toys,
monkey monkeys, photo photos, piano pianos, radio radios, zoo zoos, kangaroo kangaroos, hero heroes, mango mangoes, roof roofs,
chef chefs, giraffe giraffes, scarf scarves, man men, woman women, fireman firemen, snowman snowmen, child children,
person people, foot feet, tooth teeth, mouse mice, goose geese, lens lenses, gas gases, class classes, dress dresses, iris irises,
virus viruses, cactus cacti, octopus octopuses, axis axes, vertex vertices, oasis oases, quiz quizzes, waltz waltzes,
horse horses, vase vases, case cases, rose roses, nose noses, purse purses, cheese cheeses, prize prizes, size sizes, breeze breezes,
cookie cookies, pie pies, tie ties, shoe shoes, bee bees, tree trees, eye eyes, canoe canoes, axe axes, taxi taxis, bikini bikinis,
menu menus, banana bananas, pizza pizzas, zebra zebras, umbrella umbrellas, camera cameras, sofa sofas, church churches,
stomach stomachs, watch watches, human humans, canvas canvases, atlas atlases, day days, key keys, story stories, fly flies,
circus circuses, walrus walruses, bonus bonuses, calf calves, loaf loaves, half halves, dwarf dwarfs, fish fishes, deer deer,
aquarium aquariums, stadium stadiums, medium media, plateau plateaus, egg eggs, wave waves, stove stoves, sleeve sleeves, cave caves,
tv tvs, cd cds, ox oxen, die dice, analysis analyses, face faces, horse horses, judge judges, garage garages, collie collies
"""
NOT_PAIRS = """
len lens, texa texas, bu bus, glas glass, glass glasses, serie series, specie species, short shorts, pant pants, new news,
kansa kansas, christma christmas, atla atlas, canva canvas, ga gas, tenni tennis, viru virus, iri iris, chao chaos, jame james,
pari paris, gras grass, boo boss, mathematic mathematics, athen athens, hi his, wa was, ye yes, clothe clothes, cactu cactus,
wolf wolfs, mouse mouse, cat dog, man mans, child childs, toy toies, berry berrys, dogs dogses
"""


@pytest.mark.parametrize("pair", [pair.split() for pair in PAIRS.replace("\n", " ").split(",")], ids=" ".join)
def test_a_plural_is_the_same_answer(pair: list[str]) -> None:
    singular, plural = pair
    assert is_plural(plural, singular)
    assert equal(plural, singular)
    assert equal(f"two {singular}", f"2 {plural}")


@pytest.mark.parametrize("pair", [pair.split() for pair in NOT_PAIRS.replace("\n", " ").split(",")], ids=" ".join)
def test_a_word_in_s_is_not_always_a_plural(pair: list[str]) -> None:
    singular, other = pair
    assert not is_plural(other, singular)
    if singular != other:
        assert not equal(other, singular)


@given(st.sampled_from(sorted(SINGULARS | DIFFERENT)))
def test_a_listed_word_is_the_plural_of_no_shorter_one(word: str) -> None:
    assert not any(is_plural(word, word[:end]) for end in range(len(word)))


@given(st.text("abcdefghijklmnopqrstuvwxyz'é ", max_size=12), st.text("abcdefghijklmnopqrstuvwxyz'é ", max_size=12))
def test_any_two_words_can_be_compared_in_either_order(one: str, other: str) -> None:
    assert equal(one, other) == equal(other, one)
