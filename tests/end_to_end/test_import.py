import subprocess
import sys

CODE = "import time; t = time.process_time(); import palaestra; print(time.process_time() - t); import sys; assert not {'torch', 'transformers'} & set(sys.modules)"


def test_import_is_quick_and_loads_no_torch() -> None:
    seconds = [
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(seconds) < 0.3


def test_everything_that_is_promised_can_be_imported() -> None:
    import palaestra

    assert all(getattr(palaestra, name) is not None for name in palaestra.__all__)
    assert set(palaestra.__all__) <= set(dir(palaestra))
